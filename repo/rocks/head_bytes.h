// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How many bytes the heads of blobs have in a table, noted in the table itself when it is written: so that nobody has
/// to go through all heads to tell them from payloads. Private to this room.

#include <cstdint>
#include <memory>
#include <optional>

#include <rocksdb/table_properties.h>

namespace freshet {

std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> make_head_bytes_notes();

/// Of the values of heads; nothing for a table of a build that did not note them.
std::optional<std::uint64_t> noted_head_bytes(const rocksdb::TableProperties& table);

}  // namespace freshet
