// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Compares our prototypes and structures of a library with those of its header.

#include <cstddef>
#include <type_traits>

namespace freshet::gpu {

/// A type as the calling convention sees it: an enumeration is its integer, an address that of its kind of object. Ours
/// and the header's structures have other names; their layouts are compared below.
template <typename T>
struct Shape {
  using type = T;
};
template <typename T>
requires std::is_enum_v<T>
struct Shape<T> {
  using type = std::make_unsigned_t<std::underlying_type_t<T>>;
};
template <typename T>
struct Shape<const T> {
  using type = const typename Shape<T>::type;
};
struct AnyObject;
template <typename T>
requires(std::is_class_v<T> && !std::is_const_v<T>) struct Shape<T> {
  using type = AnyObject;
};
template <typename T>
struct Shape<T*> {
  using type = typename Shape<T>::type*;
};
template <typename R, typename... A>
struct Shape<R(A...)> {
  using type = typename Shape<R>::type(typename Shape<A>::type...);
};

template <typename Ours, typename Theirs>
constexpr bool kSameShape = std::is_same_v<typename Shape<Ours>::type, typename Shape<Theirs>::type>;

#define FRESHET_SAME_LAYOUT(Ours, Theirs) \
  static_assert(sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs), #Theirs)
#define FRESHET_SAME_FIELD(Ours, our_field, Theirs, their_field)              \
  static_assert(offsetof(Ours, our_field) == offsetof(Theirs, their_field) && \
                    sizeof(Ours::our_field) == sizeof(Theirs::their_field),   \
                #Theirs "::" #their_field)

}  // namespace freshet::gpu
