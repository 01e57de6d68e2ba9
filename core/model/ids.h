// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Names of models, versions and segments.
///
/// People see `MODEL@V`: a model's name and a version number. The model's directory or repository gives the numbers;
/// they grow, and no number is given twice. Internally, the identity of a version is its writer: run, incarnation and
/// sequence. The name of a segment (one tensor's payload) is made from it. A segment's name is the same in every store,
/// even in a store that never had the version's record.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet {

/// One training run, across its restarts. Random.
struct RunId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const RunId&) const = default;
};

/// The identity of a version: the run, its incarnation (one life of the publisher's process; grows with every restart),
/// and the sequence number of the publish within that incarnation, from 1.
struct VersionId {
  RunId run;
  std::uint64_t incarnation = 0;
  std::uint64_t sequence = 0;
  auto operator<=>(const VersionId&) const = default;
};

/// One tensor's payload: the version that wrote it, and the tensor's index in that version's architecture.
struct SegmentName {
  VersionId writer;
  std::uint32_t tensor = 0;
  auto operator<=>(const SegmentName&) const = default;
};

/// A version's number within its model; counts from 1. 0 is "none".
using VersionNumber = std::uint64_t;

/// A version as people name it: "demo@17", or "demo" for the newest (number 0).
struct VersionName {
  std::string model;
  VersionNumber number = 0;
  auto operator<=>(const VersionName&) const = default;
};

std::string to_string(const VersionName& name);
std::string to_string(const VersionId& id);      ///< "run-hex/incarnation/sequence"
std::string to_string(const SegmentName& name);  ///< "run-hex/incarnation/sequence/tensor"

/// A model name is 1 to 128 of [A-Za-z0-9._-], not starting with '.' or '-': it becomes part of file names and
/// addresses.
Status check_model_name(std::string_view name);

/// Parses "MODEL" or "MODEL@V"; invalid_argument for a bad name, a V that is not a positive number, or "MODEL@".
Result<VersionName> parse_version_name(std::string_view text);

}  // namespace freshet

template <>
struct std::hash<freshet::VersionId> {
  std::size_t operator()(const freshet::VersionId& id) const noexcept {
    std::uint64_t h = id.run.low ^ (id.incarnation * 0x9E3779B97F4A7C15ULL);
    h ^= (h >> 29) ^ (id.sequence * 0xBF58476D1CE4E5B9ULL);
    return h ^ (h >> 32);
  }
};

template <>
struct std::hash<freshet::SegmentName> {
  std::size_t operator()(const freshet::SegmentName& name) const noexcept {
    return std::hash<freshet::VersionId>()(name.writer) ^ (name.tensor * 0x94D049BB133111EBULL);
  }
};
