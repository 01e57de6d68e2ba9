// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/safetensors.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace freshet {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "freshet-safetensors-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "f.safetensors") const { return folder_ / name; }

  /// A file of the given header and data; the length in front is the header's, or the one given.
  std::string file_of(const std::string& header, const std::string& data, std::optional<std::uint64_t> length = {}) {
    std::ofstream out(path(), std::ios::binary);
    const std::uint64_t bytes = length.value_or(header.size());
    for (int i = 0; i < 8; ++i) out.put(static_cast<char>((bytes >> (8 * i)) & 0xff));
    out << header << data;
    return path();
  }

  std::size_t files_in_folder() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }

  std::filesystem::path folder_;
};

const std::vector<float> kValues = {1.5f, -2.0f, 0.0f, 7.25f, 3.0f, 4.0f};

std::vector<TensorView> some_tensors() {
  return {
      {.spec = {.name = "z.weight", .shape = {2, 2}}, .data = bytes_of(kValues.data(), 4)},
      {.spec = {.name = "flag \"q\" é", .dtype = DType::boolean}, .data = bytes_of(kValues.data(), 4).first(1)},
      {.spec = {.name = "empty", .dtype = DType::f64, .shape = {3, 0}}, .data = {}},
      {.spec = {.name = "a.weight", .dtype = DType::bf16, .shape = {3}}, .data = bytes_of(kValues.data(), 4).first(6)}};
}

TEST_F(Safetensors, RoundTrips) {
  const std::vector<TensorView> tensors = some_tensors();
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"note", "two\nlines, é"}};
  for (const bool sync : {false, true}) {
    const Status written = write_safetensors(path(), tensors, metadata, sync);
    ASSERT_TRUE(written) << written.error().message();
    for (const auto open : {SafetensorsFile::read, SafetensorsFile::map}) {
      const auto file = open(path());
      ASSERT_TRUE(file) << file.error().message();
      EXPECT_EQ(file->metadata(), metadata);
      ASSERT_EQ(file->tensors().size(), tensors.size());
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(file->tensors()[i].spec, tensors[i].spec);
        EXPECT_TRUE(std::ranges::equal(file->tensors()[i].data, tensors[i].data)) << tensors[i].spec.name;
      }
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file->tensors()[0].data.data()) % 8, 0u);
      EXPECT_TRUE(file->check_unchanged());
    }
  }
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, AFileOfNothingIsAFile) {
  ASSERT_TRUE(write_safetensors(path(), {}, {}, false));
  auto file = SafetensorsFile::read(path());
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_TRUE(file->tensors().empty());
  SafetensorsFile moved = std::move(*file);
  EXPECT_TRUE(moved.metadata().empty());
}

TEST_F(Safetensors, ReadsAHeaderPaddedWithSpaces) {
  const auto file =
      SafetensorsFile::read(file_of(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}     )", "hi"));
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(static_cast<char>(file->tensors()[0].data[1]), 'i');
}

struct HostileRow {
  const char* header;
  std::size_t data_bytes;
  const char* part;
};

constexpr HostileRow kHostile[] = {
    {"", 0, "start with '{'"},
    {" {}", 0, "start with '{'"},
    {"[]", 0, "start with '{'"},
    {"{", 0, "parse error"},
    {"{} x", 0, "parse error"},
    {"{}", 1, "belong to no tensor"},
    {R"({"w":7})", 0, "tensor w: a number"},
    {R"({"w":null})", 0, "tensor w: null"},
    {R"({"w":[]})", 0, "tensor w: an array"},
    {R"({"w":{}})", 0, "tensor w: dtype, shape or data_offsets is missing"},
    {R"({"w":{"dtype":"U8","shape":[1]}})", 1, "missing"},
    {R"({"w":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1, "a number where none belongs"},
    {R"({"w":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "a number where none belongs"},
    {R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "no 64-bit integer"},
    {R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "negative"},
    {R"({"w":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}})", 1, "no 64-bit integer"},
    {R"({"w":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "an array where none belongs"},
    {R"({"w":{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}})", 1, "an object where none belongs"},
    {R"({"w":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, "a string where none belongs"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "not two numbers"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "not two numbers"},
    {R"({"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1, "shape stands twice"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1, "1 bytes for u8[2]"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "outside"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "outside"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})", 1, "outside"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "a hole of 1 bytes before tensor w"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2, "1 bytes at the end"},
    {R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
     "overlaps"},
    {R"({"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3,
     "a hole"},
    {R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})", 2,
     "overlaps"},
    {R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "overflows"},
    {R"({"w":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})", 0, "overflows"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
     "the name w stands twice"},
    {R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "no whole number of bytes"},
    {R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "no whole number of bytes"},
    {R"({"w":{"dtype":"F4","shape":[4],"data_offsets":[0,4]}})", 4, "4 bytes for f4[4]"},
    {R"({"__metadata__":{"a":1}})", 0, "__metadata__: a number"},
    {R"({"__metadata__":{"a":{}}})", 0, "__metadata__: an object"},
    {R"({"__metadata__":{"a":"b","a":"c"}})", 0, "the name a stands twice"},
    {R"({"__metadata__":{},"__metadata__":{}})", 0, "the name __metadata__ stands twice"},
    {R"({"__metadata__":[]})", 0, "an array"},
    {"{\"w\xff\":{}}", 0, "UTF-8"},
};

// What the reference reader takes, and Freshet has no place for.
constexpr HostileRow kNotCarried[] = {
    {R"({"w":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}})", 1, "unknown dtype U7"},
    {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1, "unknown key x"},
    {R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "control"},
};

TEST_F(Safetensors, WhatCannotBeCarriedIsUnsupported) {
  const auto expect = [&](const std::string& header, std::size_t data_bytes, std::string_view part) {
    const auto file = SafetensorsFile::read(file_of(header, std::string(data_bytes, 'x')));
    ASSERT_FALSE(file) << header.substr(0, 100);
    EXPECT_EQ(file.error().code(), Code::unsupported) << header.substr(0, 100);
    EXPECT_NE(file.error().message().find(part), std::string::npos) << file.error().message();
    EXPECT_EQ(file.error().message().rfind(path(), 0), 0u) << file.error().message();
  };
  for (const HostileRow& row : kNotCarried) expect(row.header, row.data_bytes, row.part);
  const std::string entry = R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  expect("{\"" + std::string(4097, 'n') + entry, 1, "4096");
  std::string shape = R"({"w":{"dtype":"U8","shape":[1)";
  for (int i = 0; i < 64; ++i) shape += ",1";
  expect(shape + R"(],"data_offsets":[0,1]}})", 1, "more than 64 numbers");
}

// The names are those of the safetensors crate; the sizes in bits those of its documentation.
TEST_F(Safetensors, EachTypeOfTheReferenceReaderIsCarriedAsBits) {
  constexpr std::pair<const char*, std::size_t> kTypes[] = {
      {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"C64", 64},
      {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"BF16", 16},   {"F32", 32},        {"U64", 64}};
  for (const auto& [dtype, bits] : kTypes) {
    const std::size_t bytes = 3 * 8 * bits / 8;
    std::string data(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(7 * i + bits);
    const std::string header = R"({"w":{"dtype":")" + std::string(dtype) + R"(","shape":[3,8],"data_offsets":[0,)" +
                               std::to_string(bytes) + "]}}";
    const auto file = SafetensorsFile::read(file_of(header, data));
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(bits_of(file->tensors()[0].spec.dtype), bits);
    ASSERT_TRUE(write_safetensors(path("again"), file->tensors(), {}, false));
    std::ifstream written(path("again"), std::ios::binary);
    const std::string again{std::istreambuf_iterator<char>(written), {}};
    EXPECT_NE(again.find(header.substr(0, header.size() - 1)), std::string::npos) << dtype;
    EXPECT_TRUE(again.ends_with(data)) << dtype;
  }
}

TEST_F(Safetensors, NamesMayBeEmptyOrLongAndMetadataNull) {
  const std::string name(4096, 'n');
  const auto file =
      SafetensorsFile::read(file_of(R"({"__metadata__":null,"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},")" +
                                        name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                    "ab"));
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_TRUE(file->metadata().empty());
  EXPECT_EQ(file->tensors()[0].spec.name, "");
  EXPECT_EQ(file->tensors()[1].spec.name, name);
}

TEST_F(Safetensors, EachHostileHeaderIsOneLineThatNamesTheFile) {
  for (const HostileRow& row : kHostile) {
    const auto file = SafetensorsFile::read(file_of(row.header, std::string(row.data_bytes, 'x')));
    ASSERT_FALSE(file) << row.header;
    const std::string& message = file.error().message();
    EXPECT_EQ(file.error().code(), Code::corrupt) << row.header;
    EXPECT_NE(message.find(row.part), std::string::npos) << message << " for " << row.header;
    EXPECT_EQ(message.rfind(path(), 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(Safetensors, HostileLengthsAreRefused) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_TRUE(is_refused(SafetensorsFile::read(file_of("{}", "", length)), Code::corrupt, std::to_string(length)))
        << length;
  }
  std::ofstream(path(), std::ios::binary | std::ios::trunc) << "seven b";
  EXPECT_EQ(SafetensorsFile::read(path()).error().code(), Code::corrupt);
  std::ofstream(path(), std::ios::binary | std::ios::trunc).flush();
  EXPECT_EQ(SafetensorsFile::read(path()).error().code(), Code::corrupt);
}

TEST_F(Safetensors, ADeepOrLongHeaderCostsNothing) {
  const auto deep = SafetensorsFile::read(file_of("{\"w\":" + std::string(10'000'000, '['), ""));
  ASSERT_FALSE(deep);
  std::string shape = "{\"w\":{\"shape\":[0";
  for (int i = 0; i < 1'000'000; ++i) shape += ",0";
  const auto longer = SafetensorsFile::read(file_of(shape + "]}}", ""));
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message().find("more than 64 numbers"), std::string::npos) << longer.error().message();
}

TEST_F(Safetensors, EveryTruncationIsAnError) {
  ASSERT_TRUE(write_safetensors(path(), some_tensors(), {{"a", "b"}}, false));
  for (std::uintmax_t bytes = std::filesystem::file_size(path()); bytes-- > 0;) {
    std::filesystem::resize_file(path(), bytes);
    ASSERT_FALSE(SafetensorsFile::read(path())) << bytes;
    ASSERT_FALSE(SafetensorsFile::map(path())) << bytes;
  }
}

TEST_F(Safetensors, WhatWasReadStaysAsItWasWhenTheFileIsCutOrRewritten) {
  ASSERT_TRUE(write_safetensors(path(), some_tensors(), {}, false));
  const auto file = SafetensorsFile::read(path());
  ASSERT_TRUE(file) << file.error().message();
  const std::uintmax_t bytes = std::filesystem::file_size(path());
  std::filesystem::resize_file(path(), 10);
  std::filesystem::resize_file(path(), bytes);
  const std::vector<TensorView> expected = some_tensors();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(file->tensors()[i].data, expected[i].data)) << expected[i].spec.name;
  }
}

TEST_F(Safetensors, AFileInTheMakingIsToldFromAWrongOne) {
  ASSERT_TRUE(write_safetensors(path(), some_tensors(), {{"a", "b"}}, false));
  EXPECT_TRUE(check_is_whole_safetensors(path()));
  std::ofstream(path(), std::ios::binary | std::ios::app) << "more";
  EXPECT_EQ(check_is_whole_safetensors(path()).error().code(), Code::corrupt);
  for (std::uintmax_t bytes = std::filesystem::file_size(path()) - 4; bytes-- > 0;) {
    std::filesystem::resize_file(path(), bytes);
    EXPECT_TRUE(is_refused(check_is_whole_safetensors(path()), Code::unavailable)) << bytes;
  }
  EXPECT_EQ(check_is_whole_safetensors(file_of("{\"w\"", "")).error().code(), Code::corrupt);
  EXPECT_EQ(check_is_whole_safetensors(path("missing")).error().code(), Code::not_found);
}

TEST_F(Safetensors, AFileLargerThanTheMemoryIsNoRoom) {
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 43;
  const std::string header = R"({"w":{"dtype":"U8","shape":[8796093022208],"data_offsets":[0,8796093022208]}})";
  file_of(header, "");
  std::error_code error;
  std::filesystem::resize_file(path(), 8 + header.size() + kBytes, error);
  if (error) GTEST_SKIP() << "the file system holds no file of 8 TiB: " << error.message();
  EXPECT_TRUE(is_refused(SafetensorsFile::read(path()), Code::out_of_space));
  const auto mapped = SafetensorsFile::map(path());
  ASSERT_TRUE(mapped) << mapped.error().message();
  ASSERT_EQ(mapped->tensors().at(0).data.size(), kBytes);
  EXPECT_EQ(mapped->tensors().at(0).data[kBytes - 1], std::byte{0});
  EXPECT_TRUE(mapped->check_unchanged());
}

TEST_F(Safetensors, ALargeFileIsReadWhole) {
  constexpr std::size_t kBytes = (std::size_t{64} << 20) + 9;  // Two threads read as much.
  const std::string header = R"({"w":{"dtype":"U8","shape":[67108873],"data_offsets":[0,67108873]}})";
  file_of(header, "");
  std::vector<std::byte> bytes(kBytes);
  std::fstream out(path(), std::ios::binary | std::ios::in | std::ios::out);
  for (const std::size_t at : {std::size_t{0}, kBytes / 2 - 1, kBytes / 2, kBytes - 1}) {
    bytes[at] = std::byte{static_cast<unsigned char>(at % 251 + 1)};
    out.seekp(static_cast<std::streamoff>(8 + header.size() + at)).put(static_cast<char>(bytes[at]));
  }
  out.close();
  const auto file = SafetensorsFile::read(path());
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_TRUE(std::ranges::equal(file->tensors().at(0).data, bytes));
}

TEST_F(Safetensors, WhatIsNotAFileIsSaidPlainly) {
  EXPECT_EQ(SafetensorsFile::read(path("missing")).error().code(), Code::not_found);
  EXPECT_EQ(SafetensorsFile::read(folder_).error().code(), Code::invalid_argument);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::read(path("pipe")).error().code(), Code::invalid_argument);
}

TEST_F(Safetensors, WriterRefusesWhatReadersWould) {
  const Bytes four = bytes_of(kValues.data(), 1);
  const auto expect = [&](std::vector<TensorView> tensors, SafetensorsMetadata metadata, std::string_view part) {
    EXPECT_TRUE(is_refused(write_safetensors(path(), tensors, metadata, false), Code::invalid_argument, part));
    EXPECT_EQ(files_in_folder(), 0u);
  };
  expect({{.spec = {.name = "w", .shape = {2}}, .data = four}}, {}, "4 bytes for f32[2]");
  expect({{.spec = {.name = "w"}, .data = four}, {.spec = {.name = "w"}, .data = four}}, {}, "two tensors");
  expect({{.spec = {.name = "__metadata__"}, .data = four}}, {}, "__metadata__");
  expect({{.spec = {.name = "\xff"}, .data = four}}, {}, "UTF-8");
  expect({}, {{"a", "1"}, {"a", "2"}}, "twice");
  expect({}, {{"a", "\xff"}}, "UTF-8");
}

TEST_F(Safetensors, ANewFileReplacesNoOther) {
  std::vector<char> big((3 << 20) + 5);
  const auto tensors = [&] {
    return std::vector<TensorView>{
        {.spec = {.name = "w", .dtype = DType::u8, .shape = {big.size()}}, .data = std::as_bytes(std::span(big))}};
  };
  ASSERT_TRUE(write_new_safetensors(path(), tensors(), {{"step", "1"}}, false));
  EXPECT_TRUE(write_new_safetensors(path(), tensors(), {{"step", "1"}}, false));
  EXPECT_EQ(write_new_safetensors(path(), tensors(), {{"step", "2"}}, false).error().code(), Code::already_exists);
  big.back() = 1;
  EXPECT_TRUE(
      is_refused(write_new_safetensors(path(), tensors(), {{"step", "1"}}, false), Code::already_exists, path()));
  EXPECT_EQ(SafetensorsFile::read(path())->tensors()[0].data.back(), std::byte{0});
  // One that was cut short is another too, and a folder is none.
  big.back() = 0;
  std::filesystem::resize_file(path(), 1000);
  EXPECT_EQ(write_new_safetensors(path(), tensors(), {{"step", "1"}}, false).error().code(), Code::already_exists);
  std::filesystem::create_directory(path("folder"));
  EXPECT_FALSE(write_new_safetensors(path("folder"), tensors(), {}, false));
  EXPECT_EQ(files_in_folder(), 2u);
}

TEST_F(Safetensors, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  const std::vector<char> big(1 << 20);
  const std::vector<TensorView> old = {
      {.spec = {.name = "old", .dtype = DType::u8, .shape = {1}}, .data = std::as_bytes(std::span(big)).first(1)}};
  ASSERT_TRUE(write_safetensors(path(), old, {}, false));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status =
      write_safetensors(path(),
                        std::vector<TensorView>{{.spec = {.name = "new", .dtype = DType::u8, .shape = {big.size()}},
                                                 .data = std::as_bytes(std::span(big))}},
                        {}, true);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find(path()), std::string::npos);
  EXPECT_EQ(files_in_folder(), 1u);
  EXPECT_EQ(SafetensorsFile::read(path())->tensors()[0].spec.name, "old");
  EXPECT_EQ(write_safetensors(path("no/such/folder"), old, {}, true).error().code(), Code::not_found);
}

}  // namespace
}  // namespace freshet
