// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tensors in Python's memory, as C++ takes them: each array stays alive for as long as this does.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/model/tensor.h"

namespace freshet::python {

/// The bytes of an array that lies in one piece.
using ByteArray = nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using WritableByteArray = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/// One thread at a time.
class Tensors {
 public:
  /// invalid_argument for a dtype or role that is unknown, or bytes that contradict the shape.
  void add(std::string name, const std::string& dtype, Shape shape, ByteArray bytes, const std::string& role);
  /// A tensor in a GPU's memory, in one piece; `kept` owns the memory. `stream`: TensorPlace::stream.
  void add_on_device(std::string name, const std::string& dtype, Shape shape, std::uintptr_t address,
                     std::int32_t device, std::uintptr_t stream, nanobind::object kept, const std::string& role);
  std::span<const TensorView> views() const { return views_; }
  /// Gives all away; nothing stays. The views are good for as long as the arrays live.
  std::vector<TensorView> take_views() { return std::exchange(views_, {}); }
  std::vector<ByteArray> take_arrays() { return std::exchange(arrays_, {}); }
  std::vector<nanobind::object> take_kept() { return std::exchange(kept_, {}); }

 private:
  static TensorSpec spec_of(std::string name, const std::string& dtype, Shape shape, const std::string& role);

  std::vector<ByteArray> arrays_;
  std::vector<nanobind::object> kept_;
  std::vector<TensorView> views_;
};

/// invalid_argument, with the tensor's name, for what is no role.
Role role_named(const std::string& tensor, const std::string& role);

/// (name, dtype, shape, role), as Python has them.
nanobind::tuple to_python(const TensorSpec& spec);

void bind_tensors(nanobind::module_& module);

}  // namespace freshet::python
