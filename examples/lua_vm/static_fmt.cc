// What the library needs of {fmt}, for a static program: Debian has that as a shared library only.
// The header has all functions; the templates that it declares to be elsewhere are made here.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float x) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double x) noexcept;
template thousands_sep_result<char> thousands_sep_impl(locale_ref loc);
template char decimal_point_impl(locale_ref loc);

}  // namespace detail
FMT_END_NAMESPACE
