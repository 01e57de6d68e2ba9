// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Texts that follow from the records, as files beside the database (Backend::derived()). They are no part of the
/// repository: whoever removes them loses nothing but time. Private to this room.

#include <optional>
#include <string>
#include <string_view>

#include "repo/backend/backend.h"
#include "repo/rocks/store.h"

namespace freshet {

std::optional<std::string> read_derived(const RocksStore& store, std::string_view name, std::uint64_t bytes_max);
void write_derived(RocksStore& store, std::string_view name, std::string_view text, Backend::Derived where);

}  // namespace freshet
