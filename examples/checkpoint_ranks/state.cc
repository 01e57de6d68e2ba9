// SPDX-License-Identifier: Apache-2.0
#include "examples/checkpoint_ranks/state.h"

#include <sodium.h>

#include <array>
#include <cstring>

#include "core/base/format.h"
#include "core/json/json_document.h"

namespace freshet::ranks {
namespace {

constexpr std::uint64_t kWordStep = 2654435761;

Result<std::uint64_t> number_at(const JsonDocument& from, const char* key, std::uint64_t otherwise) {
  const auto at = from.find(key);
  if (at == from.end()) return otherwise;
  if (!at->is_number_unsigned()) return refuse(format("\"{}\" is no number from 0", key));
  return at->get<std::uint64_t>();
}

Result<std::string> text_at(const JsonDocument& from, const char* key, const char* otherwise) {
  const auto at = from.find(key);
  if (at == from.end() && otherwise != nullptr) return std::string(otherwise);
  if (at == from.end() || !at->is_string()) return refuse(format("\"{}\" is no text", key));
  return at->get<std::string>();
}

Result<Role> role_named(const std::string& text) {
  for (const Role role : {Role::weight, Role::buffer, Role::optimizer, Role::opaque}) {
    if (name_of(role) == text) return role;
  }
  return refuse(format("role \"{}\": one of weight, buffer, optimizer, opaque is expected", text));
}

Result<StateTensor> tensor_from(const JsonDocument& from) {
  if (!from.is_object()) return refuse("it is no object");
  StateTensor tensor;
  TensorSpec& spec = tensor.laid.spec;
  FRESHET_ASSIGN(spec.name, text_at(from, "name", nullptr));
  FRESHET_ASSIGN(const std::string dtype, text_at(from, "dtype", "f32"));
  const auto known = dtype_named(dtype);
  if (!known) return refuse(format("dtype \"{}\" is unknown", dtype));
  spec.dtype = *known;
  const auto shape = from.find("shape");
  if (shape == from.end() || !shape->is_array()) return refuse("\"shape\" is no list");
  for (const auto& extent : *shape) {
    if (!extent.is_number_unsigned()) return refuse("an extent of \"shape\" is no number from 0");
    spec.shape.push_back(extent.get<std::uint64_t>());
  }
  FRESHET_ASSIGN(const std::string role, text_at(from, "role", "weight"));
  FRESHET_ASSIGN(spec.role, role_named(role));
  FRESHET_ASSIGN(const std::string layout, text_at(from, "layout", "replicated"));
  FRESHET_ASSIGN(tensor.laid.layout, Layout::parse(layout));
  FRESHET_ASSIGN(tensor.every, number_at(from, "every", 1));
  FRESHET_TRY(spec.check());
  return tensor;
}

}  // namespace

Result<State> parse_state(std::string_view json) {
  FRESHET_ASSIGN(const JsonDocument document, parse_json(json));
  if (!document.is_object()) return refuse("a state is a JSON object");
  State state;
  const auto seed = document.find("seed");
  if (seed == document.end()) return refuse("\"seed\" is missing");
  state.seed = seed->is_string() ? seed->get<std::string>() : seed->dump();
  const auto tensors = document.find("tensors");
  if (tensors == document.end() || !tensors->is_array()) return refuse("\"tensors\" is no list");
  for (const auto& one : *tensors) {
    Result<StateTensor> tensor = tensor_from(one);
    if (!tensor) {
      return fail(std::move(tensor).error().with_context(format("tensor {} of the list", state.tensors.size())));
    }
    state.tensors.push_back(*std::move(tensor));
  }
  return state;
}

std::uint64_t written_in(const StateTensor& tensor, std::uint64_t step) {
  return tensor.every == 0 ? 0 : step - step % tensor.every;
}

void fill(const std::string& seed, const std::string& name, std::uint64_t written, const Piece& piece,
          MutableBytes out) {
  const std::string text = format("{}/{}/{}", seed, name, written);
  std::array<unsigned char, 16> hash{};
  ::crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                       nullptr, 0);
  std::uint64_t k = 0;
  for (std::size_t i = 8; i-- > 0;) k = k << 8 | hash[i];
  k >>= 1;
  std::byte* to = out.data();
  for (std::uint64_t run = 0; run < piece.count; ++run) {
    std::uint64_t at = run * piece.stride + piece.begin;
    const std::uint64_t end = at + piece.length;
    while (at < end) {
      const std::uint64_t word = k + kWordStep * (at / 8);
      std::array<std::byte, 8> bytes{};
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(word >> (8 * i) & 0xff);
      const std::uint64_t from = at % 8;
      const std::uint64_t count = std::min<std::uint64_t>(8 - from, end - at);
      std::memcpy(to, bytes.data() + from, count);
      to += count;
      at += count;
    }
  }
}

}  // namespace freshet::ranks
