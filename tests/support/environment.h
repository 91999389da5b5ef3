#pragma once

#include <cstdlib>

namespace pagetide {

// Sets an environment variable while it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

// Pretends that the machine lacks something; see disabled_features.h.
class Disabled {
 public:
  explicit Disabled(const char* features) : environment_("PAGETIDE_DISABLE", features) {}

 private:
  Environment environment_;
};

}  // namespace pagetide
