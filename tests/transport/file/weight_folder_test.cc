// SPDX-License-Identifier: Apache-2.0
#include "transport/file/weight_folder.h"

#include <gtest/gtest.h>
#include <xxhash.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/format.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

// Versions are made here by hand, from the format's description alone, and read back by the code under test; and what
// the code under test writes is taken apart by hand.

namespace freshet::file {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, std::string>;  ///< Names to bytes; all of them u8.

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string safetensors(const Tensors& tensors, const Json& metadata = nullptr) {
  Json header = Json::object();
  std::string data;
  if (!metadata.is_null()) header["__metadata__"] = metadata;
  for (const auto& [name, bytes] : tensors) {
    header[name] = {
        {"dtype", "U8"}, {"shape", {bytes.size()}}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  const std::string text = header.dump();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(text.size() >> (8 * i));
  return file + text + data;
}

std::string xxh3(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string packed(const std::string& bytes) {
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), bytes.data(), bytes.size(), 3));
  return frame;
}

std::string unpacked(const std::string& frame) {
  std::string bytes(ZSTD_getFrameContentSize(frame.data(), frame.size()), '\0');
  EXPECT_EQ(ZSTD_decompress(bytes.data(), bytes.size(), frame.data(), frame.size()), bytes.size());
  return bytes;
}

std::string combined(std::string one, const std::string& other) {
  for (std::size_t i = 0; i < one.size(); ++i) one[i] = static_cast<char>(one[i] ^ other[i]);
  return one;
}

std::string overwritten(std::initializer_list<std::pair<std::uint32_t, char>> changes) {
  const auto word = [](std::uint32_t value) {
    std::string text;
    for (int i = 0; i < 4; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  std::string body = word(static_cast<std::uint32_t>(changes.size()));
  for (const auto& [position, value] : changes) body += word(position);
  for (const auto& [position, value] : changes) body += value;
  return body;
}

class WeightFolder : public testing::Test {
 protected:
  std::string path_of(const std::string& name) const { return folder_ / name; }

  void make_full(int number, const Tensors& tensors) const {
    const std::string path = path_of(format("weight_v{:06}", number));
    std::filesystem::create_directories(path);
    write_text(path + "/model.safetensors", safetensors(tensors));
  }

  void make_delta(int number, const Tensors& frames, const Json& checksums, const std::string& encoding = "xor",
                  int base = -1) const {
    const std::string path = path_of(format("weight_v{:06}", number));
    std::filesystem::create_directories(path);
    write_text(path + "/model-00001.safetensors", safetensors(frames, checksums));
    write_text(path + "/model.safetensors.index.json",
               Json{{"metadata",
                     {{"version", format("{:06}", number)},
                      {"base_version", format("{:06}", base < 0 ? number - 1 : base)},
                      {"delta_encoding", encoding},
                      {"compression_format", "zstd"},
                      {"checksum_format", "xxh3-128"}}},
                    {"weight_map", Json::object()}}
                   .dump());
  }

  Status read(VersionNumber number) { return WeightFolderReader::open(folder_ / "")->read(number, weights_); }
  Tensors have() const {
    Tensors tensors;
    for (const TensorView& view : weights_.tensors()) {
      tensors[view.spec.name] = std::string(reinterpret_cast<const char*>(view.data.data()), view.data.size());
    }
    return tensors;
  }
  std::string error_of(VersionNumber number, Code code) {
    const Status status = read(number);
    if (status) return "read";
    EXPECT_EQ(status.error().code(), code) << status.error().message();
    return status.error().message();
  }

  TemporaryFolder folder_;
  FolderWeights weights_;
};

TEST_F(WeightFolder, ADeltaIsAppliedToTheWholeVersionBeforeIt) {
  make_full(1, {{"a", "abcdef"}, {"b", "0123"}});
  make_delta(2, {{"a", packed(combined("abcdef", "abXdef"))}}, {{"a", xxh3("abXdef")}});
  make_delta(3, {{"b", packed(overwritten({{0, '9'}, {3, '8'}}))}}, {{"b", xxh3("9128")}}, "overwrite");
  ASSERT_TRUE(read(3)) << read(3).error().message();
  EXPECT_EQ(have(), (Tensors{{"a", "abXdef"}, {"b", "9128"}}));
  EXPECT_EQ(weights_.number(), 3u);
}

TEST_F(WeightFolder, WhatIsThereAlreadyIsOnlyAdvanced) {
  make_full(1, {{"a", "abcdef"}, {"b", "0123"}});
  ASSERT_TRUE(read(1));
  EXPECT_EQ(weights_.changed(), (std::vector<std::uint32_t>{0, 1}));
  make_delta(2, {{"b", packed(combined("0123", "0193"))}}, {{"b", xxh3("0193")}});
  std::filesystem::remove_all(path_of("weight_v000001"));  // Not needed any more.
  ASSERT_TRUE(read(2));
  EXPECT_EQ(weights_.changed(), std::vector<std::uint32_t>{1});
  EXPECT_EQ(have()["b"], "0193");
}

TEST_F(WeightFolder, LatestIsWhatThePointerSaysOrTheHighest) {
  const auto reader = WeightFolderReader::open(folder_ / "");
  EXPECT_EQ(reader->latest().error().code(), Code::not_found);
  make_full(1, {{"a", "a"}});
  make_full(12, {{"a", "b"}});
  std::filesystem::create_directories(path_of("weight_v13"));
  std::filesystem::create_directories(path_of("weight_v0000014"));
  std::filesystem::create_directories(path_of(".weight.1.2"));
  EXPECT_EQ(reader->latest().value(), 12u);
  write_text(path_of("latest"), "run-7/weight_v000001\n");
  EXPECT_EQ(reader->latest().value(), 1u);
  write_text(path_of("latest"), "weight_v000099");
  EXPECT_EQ(reader->latest().value(), 12u) << "it points to nothing";
  write_text(path_of("latest"), "../../etc");
  EXPECT_EQ(reader->latest().value(), 12u);
}

TEST_F(WeightFolder, BytesThatAreNotAsTheChecksumSaysAreNotHandedOut) {
  make_full(1, {{"a", "abcdef"}});
  make_delta(2, {{"a", packed(combined("abcdef", "abXdef"))}}, {{"a", xxh3("abYdef")}});
  EXPECT_NE(error_of(2, Code::corrupt).find("checksum"), std::string::npos);
  EXPECT_EQ(weights_.number(), 0u);
  make_delta(2, {{"a", packed(combined("abcdef", "abXdef"))}}, Json::object());
  EXPECT_NE(error_of(2, Code::corrupt).find("checksum"), std::string::npos);
}

TEST_F(WeightFolder, HostileDeltasAreRefused) {
  make_full(1, {{"a", "abcdef"}});
  const auto refused = [&](const std::string& name, const std::string& body, const std::string& encoding) {
    make_delta(2, {{name, body}}, {{name, xxh3("abcdef")}}, encoding);
    return error_of(2, Code::corrupt);
  };
  EXPECT_NE(refused("a", packed(std::string(5, '\0')), "xor"), "read");
  EXPECT_NE(refused("a", packed(std::string(7, '\0')), "xor"), "read");
  EXPECT_NE(refused("a", packed(std::string(1 << 24, '\0')), "xor"), "read");
  EXPECT_NE(refused("a", "no zstd frame", "xor"), "read");
  EXPECT_NE(refused("a", packed(std::string(6, '\0')).substr(0, 8), "xor"), "read");
  EXPECT_NE(refused("elsewhere", packed(std::string(6, '\0')), "xor"), "read");
  EXPECT_NE(refused("a", packed(overwritten({{6, 'x'}})), "overwrite"), "read");
  EXPECT_NE(refused("a", packed(std::string("\xff\xff\xff\xff", 4)), "overwrite"), "read");
  EXPECT_NE(refused("a", packed(overwritten({{0, 'a'}}) + "more"), "overwrite"), "read");
  EXPECT_NE(refused("a", packed("ab"), "overwrite"), "read");
  EXPECT_EQ(refused("a", packed(overwritten({{0, 'a'}})), "overwrite"), "read") << "this one is right";
}

TEST_F(WeightFolder, ChainsThatLeadNowhereAreToldApart) {
  make_delta(3, {{"a", packed("x")}}, {{"a", xxh3("x")}});
  EXPECT_NE(error_of(3, Code::not_found).find("weight_v000002"), std::string::npos);
  make_delta(2, {{"a", packed("x")}}, {{"a", xxh3("x")}}, "xor", 2);
  EXPECT_NE(error_of(2, Code::corrupt), "read");
  make_delta(2, {{"a", packed("x")}}, {{"a", xxh3("x")}}, "xor", 5);
  EXPECT_NE(error_of(2, Code::corrupt), "read");
  EXPECT_NE(error_of(9, Code::not_found), "read");
  make_delta(2, {{"a", packed("x")}}, {{"a", xxh3("x")}}, "snappy", 1);
  make_full(1, {{"a", "y"}});
  EXPECT_NE(error_of(2, Code::unsupported).find("snappy"), std::string::npos);
}

WeightFolderWriter::Version version_of(VersionNumber number, const Tensors& tensors) {
  WeightFolderWriter::Version version{.number = number};
  for (const auto& [name, bytes] : tensors) {
    version.tensors.push_back(
        {.spec = {.name = name, .dtype = DType::u8, .shape = {bytes.size()}}, .data = std::as_bytes(std::span(bytes))});
  }
  return version;
}

TEST_F(WeightFolder, WhatIsWrittenIsAsTheFormatSays) {
  const Tensors first{{"a", "abcdef"}, {"b", "0123"}}, second{{"a", "abXdef"}, {"b", "0123"}};
  auto writer = WeightFolderWriter::open(folder_ / "out", {});
  const auto one = version_of(4, first), two = version_of(5, second);
  ASSERT_TRUE(writer->write(one, nullptr));
  ASSERT_TRUE(writer->write(two, &one));
  const std::string whole = folder_ / "out/weight_v000004/", delta = folder_ / "out/weight_v000005/";
  EXPECT_FALSE(Json::parse(read_text(whole + "model.safetensors.index.json"))["metadata"].contains("delta_encoding"));
  const Json index = Json::parse(read_text(delta + "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["version"], "000005");
  EXPECT_EQ(index["metadata"]["base_version"], "000004");
  EXPECT_EQ(index["metadata"]["delta_encoding"], "xor");
  ASSERT_EQ(index["weight_map"].size(), 1u) << "only what changed";
  const std::string file = read_text(delta + index["weight_map"]["a"].get<std::string>());
  const std::uint64_t header_bytes = static_cast<unsigned char>(file[0]) | (static_cast<unsigned char>(file[1]) << 8);
  const Json header = Json::parse(file.substr(8, header_bytes));
  EXPECT_EQ(header["__metadata__"]["a"], xxh3("abXdef"));
  EXPECT_EQ(header["a"]["dtype"], "U8");
  EXPECT_EQ(combined("abcdef", unpacked(file.substr(8 + header_bytes))), "abXdef");
  EXPECT_EQ(read_text(folder_ / "out/latest"), "weight_v000005\n");
}

TEST_F(WeightFolder, WrittenAndReadBack) {
  auto writer = WeightFolderWriter::open(folder_ / "", {.full_every = 3});
  Tensors tensors{{"a", std::string(100'000, 'a')}, {"b", "0123"}, {"empty", ""}};
  std::optional<Tensors> before;
  int deltas = 0;
  for (VersionNumber number = 1; number <= 7; ++number) {
    tensors["a"][number * 1000] = static_cast<char>('a' + number);
    const auto now = version_of(number, tensors);
    const auto base = before ? std::optional(version_of(number - 1, *before)) : std::nullopt;
    const auto path = writer->write(now, base ? &*base : nullptr);
    ASSERT_TRUE(path) << path.error().message();
    if (read_text(*path + "/model.safetensors.index.json").find("delta_encoding") != std::string::npos) ++deltas;
    before = tensors;
    ASSERT_TRUE(read(number));
    EXPECT_EQ(have(), tensors);
  }
  EXPECT_EQ(deltas, 4) << "whole ones are 1, 4 and 7";
  FolderWeights anew;
  ASSERT_TRUE(WeightFolderReader::open(folder_ / "")->read(6, anew));
}

TEST_F(WeightFolder, AVersionThatFollowsNoneIsWhole) {
  auto writer = WeightFolderWriter::open(folder_ / "", {});
  const Tensors tensors{{"a", "abc"}};
  const auto one = version_of(1, tensors), three = version_of(3, tensors);
  ASSERT_TRUE(writer->write(one, nullptr));
  const auto path = writer->write(three, &one);
  ASSERT_TRUE(path);
  EXPECT_EQ(read_text(*path + "/model.safetensors.index.json").find("delta_encoding"), std::string::npos);
  EXPECT_EQ(writer->write(version_of(3, {{"a", "abX"}}), nullptr).error().code(), Code::already_exists);
  EXPECT_EQ(writer->write(version_of(3, {{"a", "abc"}, {"b", "d"}}), nullptr).error().code(), Code::already_exists);
  EXPECT_EQ(writer->write(version_of(0, tensors), nullptr).error().code(), Code::invalid_argument);
}

TEST_F(WeightFolder, APlaceThatCannotBeLookedAtIsAnError) {
  auto writer = WeightFolderWriter::open(folder_ / "", {});
  std::filesystem::create_symlink("weight_v000001", folder_ / "weight_v000001");
  EXPECT_TRUE(is_refused(writer->write(version_of(1, {{"a", "abc"}}), nullptr), Code::io_error, "look for"));
}

TEST_F(WeightFolder, WhatIsThereAlreadyIsKeptAndPointedTo) {
  auto writer = WeightFolderWriter::open(folder_ / "", {.full_every = 3});
  std::vector<WeightFolderWriter::Version> versions;
  const std::vector<Tensors> tensors{
      {{"b", "0"}, {"a", "abc"}}, {{"b", "0"}, {"a", "abd"}}, {{"b", "1"}, {"a", "abd"}}};
  for (VersionNumber number = 1; number <= 3; ++number) versions.push_back(version_of(number, tensors[number - 1]));
  ASSERT_TRUE(writer->write(versions[0], nullptr));
  ASSERT_TRUE(writer->write(versions[1], &versions[0]));
  ASSERT_TRUE(writer->write(versions[2], &versions[1]));
  // A rollback to the second, whose files are a delta, and another writer, that was started anew.
  auto restarted = WeightFolderWriter::open(folder_ / "", {.full_every = 3});
  for (auto* each : {&*writer, &*restarted}) {
    const auto path = each->write(versions[1], &versions[0]);
    ASSERT_TRUE(path) << path.error().message();
    EXPECT_EQ(read_text(folder_ / "latest"), "weight_v000002\n");
  }
  const auto next = restarted->write(version_of(4, tensors[0]), &versions[1]);
  ASSERT_TRUE(next);
  EXPECT_EQ(read_text(*next + "/model.safetensors.index.json").find("delta_encoding"), std::string::npos);
  for (VersionNumber number = 1; number <= 3; ++number) {
    FolderWeights anew;
    ASSERT_TRUE(WeightFolderReader::open(folder_ / "")->read(number, anew)) << number;
  }
}

}  // namespace
}  // namespace freshet::file
