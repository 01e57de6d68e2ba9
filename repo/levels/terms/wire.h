// SPDX-License-Identifier: Apache-2.0
#pragma once

/// To read and write levels.fbs. For the source files of repo/levels/.

#include <cstring>
#include <optional>
#include <vector>

#include "core/base/format.h"
#include "core/model/tensor.h"
#include "repo/levels/terms/levels_generated.h"
#include "repo/levels/terms/terms.h"

namespace freshet::levels {

inline constexpr const char* kTableId = "FLT1";
inline constexpr const char* kShardId = "FLS1";
inline constexpr const char* kNoteId = "FLN1";
inline constexpr const char* kQuestionId = "FLQ1";
inline constexpr const char* kInventoryId = "FLI1";
inline constexpr const char* kPlanId = "FLP1";
inline constexpr const char* kOutcomeId = "FLO1";

inline std::vector<std::byte> bytes_in(const flatbuffers::FlatBufferBuilder& builder) {
  const auto* bytes = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {bytes, bytes + builder.GetSize()};
}

/// A verified table and the aligned copy that it stands in.
template <typename Table>
class Root {
 public:
  Root(std::vector<std::uint64_t> memory, const Table* table) : memory_(std::move(memory)), table_(table) {}
  const Table* operator->() const { return table_; }
  const Table& operator*() const { return *table_; }

 private:
  std::vector<std::uint64_t> memory_;  ///< Moving it does not move its bytes.
  const Table* table_;
};

template <typename Table>
Result<Root<Table>> root_of(Bytes bytes, const char* id) {
  constexpr std::size_t kTablesMax = std::size_t{1} << 20;
  constexpr std::size_t kShortest = 12;
  std::vector<std::uint64_t> memory((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
  const auto* data = reinterpret_cast<const std::uint8_t*>(memory.data());
  if (bytes.size() >= kShortest) {
    flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/8, kTablesMax);
    if (verifier.VerifyBuffer<Table>(id)) {
      const Table* table = flatbuffers::GetRoot<Table>(data);
      return Root<Table>(std::move(memory), table);
    }
  }
  return fail(Code::corrupt, format("a message of {} bytes is not a {} of checkpoint levels", bytes.size(), id));
}

inline wire::Version wire_of(const Version& version) {
  const VersionId& id = version.id;
  return wire::Version(wire::Id(id.run.high, id.run.low, id.incarnation, id.sequence), version.number);
}

inline Version version_from(const wire::Version& from) {
  const wire::Id& id = from.id();
  return {.id = {.run = {.high = id.run_high(), .low = id.run_low()},
                 .incarnation = id.incarnation(),
                 .sequence = id.sequence()},
          .number = from.number()};
}

/// 0: no error.
inline std::uint8_t code_on_wire(const std::optional<Error>& error) {
  return error ? static_cast<std::uint8_t>(static_cast<std::uint8_t>(error->code()) + 1) : 0;
}

inline Result<std::optional<Error>> error_from(std::uint8_t code, const flatbuffers::String* text) {
  if (code == 0) return std::optional<Error>();
  if (code > static_cast<std::uint8_t>(Code::io_error) + 1) return fail(Code::corrupt, "an unknown error");
  return std::optional<Error>(Error(static_cast<Code>(code - 1), text == nullptr ? "" : text->str()));
}

}  // namespace freshet::levels
