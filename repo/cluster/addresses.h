#pragma once

/// Where providers are now. A placement says at which address each one was when it came; a provider that is offered
/// elsewhere later says so in an address book, a shared record that every provider keeps a copy of. Each entry is
/// written by its provider alone, which counts its changes; so two copies are brought together by taking the later
/// entry of each, whoever meets whom in whatever order, and no more than one provider has to be reached. The placement
/// does not change: ids decide where versions are, not addresses.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/result.h"
#include "repo/cluster/placement.h"
#include "repo/repository.h"

namespace freshet::cluster {

inline constexpr const char* kAddressesKey = "addresses";
inline constexpr const char* kSelfKey = "self";  ///< A provider's own id.

/// One thread at a time.
class AddressBook {
 public:
  /// Empty when it says nothing of that provider.
  std::string address_of(const std::string& id) const;
  /// The provider itself says where it is now. invalid_argument for what is no id or address; no error, and no change,
  /// when that is known.
  Status say(const std::string& id, const std::string& address);
  /// True when there was anything later in the other one.
  bool merge(const AddressBook& other);

  /// A line for each provider: id, count of changes, address.
  std::string encode() const;
  /// corrupt for anything that encode() cannot have made.
  static Result<AddressBook> decode(std::string_view text);
  bool operator==(const AddressBook&) const = default;

 private:
  struct Entry {
    std::uint64_t change = 0;
    std::string address;
    auto operator<=>(const Entry&) const = default;
  };
  std::map<std::string, Entry> entries_;
};

/// What a provider knows; an empty book when nobody has ever moved.
Result<AddressBook> addresses_at(Repository& provider);
/// Makes it durable at the provider that `id` is at `address`.
Status say_address(Repository& provider, const std::string& id, const std::string& address);
/// Brings what both know to both, and answers that.
Result<AddressBook> exchange_addresses(Repository& one, Repository& other);

}  // namespace freshet::cluster
