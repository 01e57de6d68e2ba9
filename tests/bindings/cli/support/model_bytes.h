// SPDX-License-Identifier: Apache-2.0
#pragma once

/// safetensors files as the tests know them: the format's eight bytes, JSON and data, read and written independently of
/// the code under test.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace freshet::cli_test {

using Json = nlohmann::ordered_json;

struct FileTensor {
  std::string name;
  std::string dtype;  ///< As in the file: "F32".
  std::vector<std::uint64_t> shape;
  std::string bytes;
  bool operator==(const FileTensor&) const = default;
};

struct ModelBytes {
  std::vector<FileTensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  bool operator==(const ModelBytes&) const = default;
};

std::string encoded(const ModelBytes& model);
/// Nothing when it is no such file, down to the last byte.
std::optional<ModelBytes> decoded(const std::string& file);

void write_file(const std::string& path, const std::string& text);
std::optional<std::string> read_file(const std::string& path);

/// The model of a file; an empty one when there is none.
ModelBytes model_in(const std::string& path);

/// One tensor of every type of safetensors, an empty one, a scalar, one with the empty name, one with the longest, and
/// metadata in an order that is not the alphabet's; bytes depend on `seed`.
ModelBytes model_of_all_types(unsigned seed);

/// Tensors "a.w" f32[4], "b.w" f32[4], "c.w" f32[4], each filled with its number.
ModelBytes chain(char a, char b, char c);

}  // namespace freshet::cli_test
