#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

// Holds any DirtyBackend behind one type, so that a Tracker is one type whatever it runs on.
class AnyBackend {
 public:
  // The first condition keeps moving an AnyBackend from asking whether it is a back end itself.
  template <typename B>
  requires(!std::is_same_v<B, AnyBackend>) && DirtyBackend<B> explicit AnyBackend(B backend)
      : model_(std::make_unique<Model<B>>(std::move(backend))) {}

  BackendKind kind() const { return model_->kind(); }
  Result<void> watch(ByteRange range) { return model_->watch(range); }
  void unwatch(ByteRange range) { model_->unwatch(range); }
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written) {
    return model_->collect(whole, part, mode, written);
  }
  Result<void> prefill(ByteRange range, Prefill policy) { return model_->prefill(range, policy); }
  void purged(ByteRange range) { model_->purged(range); }
  std::size_t count_armed(ByteRange whole, ByteRange part) {
    return model_->count_armed(whole, part);
  }

 private:
  struct Concept {
    virtual ~Concept() = default;
    virtual BackendKind kind() const = 0;
    virtual Result<void> watch(ByteRange range) = 0;
    virtual void unwatch(ByteRange range) = 0;
    virtual Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode,
                                 DirtyBitmap& written) = 0;
    virtual Result<void> prefill(ByteRange range, Prefill policy) = 0;
    virtual void purged(ByteRange range) = 0;
    virtual std::size_t count_armed(ByteRange whole, ByteRange part) = 0;
  };
  template <DirtyBackend B>
  struct Model final : Concept {
    explicit Model(B b) : backend(std::move(b)) {}
    BackendKind kind() const override { return backend.kind(); }
    Result<void> watch(ByteRange range) override { return backend.watch(range); }
    void unwatch(ByteRange range) override { backend.unwatch(range); }
    Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode,
                         DirtyBitmap& written) override {
      return backend.collect(whole, part, mode, written);
    }
    Result<void> prefill(ByteRange range, Prefill policy) override {
      return backend.prefill(range, policy);
    }
    void purged(ByteRange range) override {
      if constexpr (requires { backend.purged(range); }) {
        backend.purged(range);
      } else {
        (void)range;
      }
    }
    std::size_t count_armed(ByteRange whole, ByteRange part) override {
      if constexpr (requires { backend.count_armed(whole, part); }) {
        return backend.count_armed(whole, part);
      } else {
        (void)whole;
        (void)part;
        return 0;
      }
    }
    B backend;
  };

  std::unique_ptr<Concept> model_;
};

}  // namespace pagetide
