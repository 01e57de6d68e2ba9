// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server of a repository that one process owns at a time, while others stand by.

#include <cstdint>
#include <string>

namespace freshet {

struct ServedOwner {
  std::string address;     ///< For clients; empty: nobody owns the repository, or no client can reach the owner.
  std::string public_key;  ///< Of the address; empty: it takes no keys.
  bool operator==(const ServedOwner&) const = default;
};

/// A server's part in its repository.
enum class Standing : std::uint8_t {
  stays,    ///< Its only owner.
  moves,    ///< The owner, until another server takes the repository over.
  standby,  ///< It answers nothing, but tells of the owner.
};

}  // namespace freshet
