// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/canonical_json.h"
#include "core/json/json_document.h"
#include "core/model/graph.h"
#include "core/safetensors/safetensors.h"
#include "core/words/classic_locale.h"

namespace freshet {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kHeaderMetadataKey = "__metadata__";

/// Reads a header from the parser's events, so that nothing but its tensors is ever held and duplicate keys are seen.
///
/// top      -> "__metadata__" -> metadata, or a tensor's name -> tensor
/// tensor   -> dtype: string | shape, data_offsets: array of integers
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  bool start_object(std::size_t) override {
    if (where_ == Where::start) return go(Where::top);
    if (where_ != Where::top) return refuse(format("{}: an object where none belongs", place()));
    if (key_ == kHeaderMetadataKey) return go(Where::metadata);
    entry_ = SafetensorsHeader::Entry{.spec = {.name = key_}};
    fields_ = {};
    return go(Where::tensor);
  }

  bool end_object() override {
    if (where_ == Where::metadata) return go(Where::top);
    if (where_ == Where::top) return go(Where::end);
    if (fields_.size() != 3) return refuse(format("{}: dtype, shape or data_offsets is missing", place()));
    if (offsets_.size() != 2) return refuse(format("{}: data_offsets are not two numbers", place()));
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (header_.entries.size() == kTensorsMax) return cannot_carry(format("more than {} tensors", kTensorsMax));
    header_.entries.push_back(std::move(entry_));
    return go(Where::top);
  }

  bool key(string_t& name) override {
    if (where_ == Where::tensor) {
      field_ = std::move(name);
      if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
        return cannot_carry(format("{}: unknown key {}", place(), shown(field_)));
      }
      if (!fields_.insert(field_).second) return refuse(format("{}: {} stands twice", place(), field_));
      return true;
    }
    std::unordered_set<std::string>& seen = where_ == Where::metadata ? metadata_keys_ : names_;
    if (!seen.insert(name).second) return refuse(format("the name {} stands twice", shown(name)));
    (where_ == Where::metadata ? field_ : key_) = std::move(name);
    return true;
  }

  bool string(string_t& value) override {
    if (where_ == Where::metadata) {
      if (header_.metadata.size() == kTensorsMax) return cannot_carry(format("more than {} metadata", kTensorsMax));
      header_.metadata.emplace_back(std::move(field_), std::move(value));
      return true;
    }
    if (where_ != Where::tensor || field_ != "dtype") return misplaced("a string");
    const std::optional<DType> dtype = dtype_of_safetensors(value);
    if (!dtype) return cannot_carry(format("{}: unknown dtype {}", place(), shown(value)));
    entry_.spec.dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor || field_ == "dtype") return misplaced("an array");
    if (field_ == "data_offsets") offsets_.clear();
    return go(Where::numbers);
  }
  bool end_array() override { return go(Where::tensor); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::numbers) return misplaced("a number");
    Shape& numbers = field_ == "shape" ? entry_.spec.shape : offsets_;
    if (numbers.size() == kRankMax) {
      return cannot_carry(format("{}: {} has more than {} numbers", place(), field_, kRankMax));
    }
    numbers.push_back(value);
    return true;
  }

  bool number_integer(number_integer_t) override { return misplaced("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return misplaced("a number that is no 64-bit integer");
  }
  bool null() override {
    // A writer without metadata may say so.
    return (where_ == Where::top && key_ == kHeaderMetadataKey) || misplaced("null");
  }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool binary(binary_t&) override { return misplaced("binary"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return refuse(json_error_text(error.what()));
  }

  Error error() const { return {code_, error_}; }
  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class Where { start, top, metadata, tensor, numbers, end };

  bool go(Where where) {
    where_ = where;
    return true;
  }
  bool refuse(std::string reason) {
    if (error_.empty()) error_ = std::move(reason);
    return false;
  }
  /// Of a file that may be good, and holds what Freshet has no place for.
  bool cannot_carry(std::string reason) {
    if (error_.empty()) code_ = Code::unsupported;
    return refuse(std::move(reason));
  }
  bool misplaced(std::string_view what) { return refuse(format("{}: {} where none belongs", place(), what)); }
  std::string place() const {
    if (where_ == Where::start || key_.empty()) return "header";
    return where_ == Where::metadata ? "__metadata__" : format("tensor {}", shown(key_));
  }

  Where where_ = Where::start;
  std::string key_;    ///< Of the top object.
  std::string field_;  ///< Of the tensor or of the metadata.
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::unordered_set<std::string> fields_;
  SafetensorsHeader::Entry entry_;
  Shape offsets_;
  SafetensorsHeader header_;
  std::string error_;
  Code code_ = Code::corrupt;
};

tl::unexpected<Error> corrupt_header(std::string reason) { return fail(Code::corrupt, std::move(reason)); }

/// Sorted by begin, the entries must cover the data without gap and without overlap.
Status check_layout(const std::vector<SafetensorsHeader::Entry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const SafetensorsHeader::Entry& entry : entries) {
    const std::string name = shown(entry.spec.name);
    if (entry.end < entry.begin || entry.end > data_bytes) {
      return corrupt_header(format("tensor {}: bytes {} to {} are outside of the file's {} data bytes", name,
                                   entry.begin, entry.end, data_bytes));
    }
    if (entry.end - entry.begin != entry.spec.bytes()) {
      return corrupt_header(format("tensor {}: {} bytes for {}", name, entry.end - entry.begin,
                                   describe(entry.spec.dtype, entry.spec.shape)));
    }
    if (entry.begin < covered) return corrupt_header(format("tensor {} overlaps the one before it", name));
    if (entry.begin > covered)
      return corrupt_header(format("a hole of {} bytes before tensor {}", entry.begin - covered, name));
    covered = entry.end;
  }
  if (covered != data_bytes)
    return corrupt_header(format("{} bytes at the end belong to no tensor", data_bytes - covered));
  return {};
}

/// All but the layout.
Result<SafetensorsHeader> parse_entries(std::string_view json) {
  if (json.size() > kSafetensorsHeaderBytesMax) {
    return corrupt_header(
        format("a header of {} bytes is over the limit of {}", json.size(), kSafetensorsHeaderBytesMax));
  }
  if (json.empty() || json.front() != '{') return corrupt_header("the header does not start with '{'");
  const ClassicLocale locale;
  HeaderReader reader;
  try {
    if (!Json::sax_parse(json.begin(), json.end(), &reader)) return fail(reader.error());
  } catch (const std::exception& error) {
    return corrupt_header(json_error_text(error.what()));
  }
  SafetensorsHeader header = reader.take();
  for (const SafetensorsHeader::Entry& entry : header.entries) {
    // No file has a tensor of such a size: the sizes of all files are numbers of bytes.
    if (!byte_size(entry.spec.dtype, entry.spec.shape)) {
      return corrupt_header(format("tensor {}: the size of {} overflows or is no whole number of bytes",
                                   shown(entry.spec.name), describe(entry.spec.dtype, entry.spec.shape)));
    }
    if (Status status = entry.spec.check(); !status) return fail(Code::unsupported, status.error().message());
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& left, const auto& right) {
    return std::tie(left.begin, left.end) < std::tie(right.begin, right.end);
  });
  return header;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes) {
  FRESHET_ASSIGN(SafetensorsHeader header, parse_entries(json));
  FRESHET_TRY(check_layout(header.entries, data_bytes));
  return header;
}

Result<std::uint64_t> data_bytes_of_safetensors_header(std::string_view json) {
  FRESHET_ASSIGN(const SafetensorsHeader header, parse_entries(json));
  const std::uint64_t data_bytes = header.entries.empty() ? 0 : header.entries.back().end;
  FRESHET_TRY(check_layout(header.entries, data_bytes));
  return data_bytes;
}

}  // namespace freshet
