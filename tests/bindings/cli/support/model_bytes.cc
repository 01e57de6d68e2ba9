// SPDX-License-Identifier: Apache-2.0
#include "tests/bindings/cli/support/model_bytes.h"

#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

namespace freshet::cli_test {

std::string encoded(const ModelBytes& model) {
  Json header = Json::object();
  if (!model.metadata.empty()) {
    header["__metadata__"] = Json::object();
    for (const auto& [key, value] : model.metadata) header["__metadata__"][key] = value;
  }
  std::string data;
  for (const FileTensor& tensor : model.tensors) {
    const std::size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string json = header.dump();
  const std::uint64_t length = json.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + json + data;
}

std::optional<ModelBytes> decoded(const std::string& file) {
  std::uint64_t length = 0;
  if (file.size() < sizeof(length)) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > file.size() - sizeof(length)) return std::nullopt;
  const Json header = Json::parse(file.substr(sizeof(length), length), nullptr, false);
  if (!header.is_object()) return std::nullopt;
  const std::string data = file.substr(sizeof(length) + length);
  ModelBytes model;
  std::size_t end = 0;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      for (const auto& [name, text] : value.items()) model.metadata.emplace_back(name, text.get<std::string>());
      continue;
    }
    const std::size_t from = value["data_offsets"][0].get<std::size_t>();
    const std::size_t to = value["data_offsets"][1].get<std::size_t>();
    if (from > to || to > data.size()) return std::nullopt;
    end = std::max(end, to);
    model.tensors.push_back({.name = key,
                             .dtype = value["dtype"].get<std::string>(),
                             .shape = value["shape"].get<std::vector<std::uint64_t>>(),
                             .bytes = data.substr(from, to - from)});
  }
  return end == data.size() ? std::optional(model) : std::nullopt;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

ModelBytes model_in(const std::string& path) {
  const std::optional<std::string> file = read_file(path);
  return file ? decoded(*file).value_or(ModelBytes{}) : ModelBytes{};
}

ModelBytes model_of_all_types(unsigned seed) {
  constexpr std::pair<const char*, std::size_t> kTypes[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4},
      {"I16", 2}, {"I8", 1},  {"U64", 8}, {"U32", 4},  {"U16", 2},     {"U8", 1},      {"BOOL", 1}};
  std::mt19937 random(seed);
  ModelBytes model{.metadata = {{"zebra", "first"},
                                {"format", "pt"},
                                {"empty", ""},
                                {"quote\"", "line\nbreak ü"},
                                {"long", std::string(100'000, 'm')}}};
  for (const auto& [dtype, size] : kTypes) {
    std::string bytes(15 * size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(dtype == std::string("BOOL") ? random() % 2 : random());
    model.tensors.push_back({std::string("layer.") + dtype, dtype, {3, 5}, bytes});
  }
  constexpr std::pair<const char*, std::size_t> kCarriedAsBits[] = {
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}, {"C64", 64}};
  for (const auto& [dtype, bits] : kCarriedAsBits) {
    std::string bytes(12 * bits / 8, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    model.tensors.push_back({std::string("bits.") + dtype, dtype, {3, 4}, bytes});
  }
  model.tensors.push_back({"", "U8", {2}, std::string(2, static_cast<char>(seed))});
  model.tensors.push_back({std::string(4096, 'n'), "U8", {2}, std::string(2, static_cast<char>(seed + 1))});
  model.tensors.push_back({"nothing", "F32", {0, 7}, ""});
  model.tensors.push_back({"scalar", "I64", {}, std::string(8, static_cast<char>(seed))});
  return model;
}

ModelBytes chain(char a, char b, char c) {
  ModelBytes model;
  for (const auto& [name, fill] : {std::pair("a.w", a), std::pair("b.w", b), std::pair("c.w", c)}) {
    model.tensors.push_back({name, "F32", {4}, std::string(16, fill)});
  }
  return model;
}

}  // namespace freshet::cli_test
