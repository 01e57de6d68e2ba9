#include "repo/cluster/addresses.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/format.h"

namespace freshet::cluster {
namespace {

constexpr int kAddressTriesMax = 64;  ///< Each one is lost to somebody else's success.

bool is_id(std::string_view id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !id.empty() && id.size() <= kProviderIdBytesMax && std::ranges::all_of(id, allowed);
}

bool is_address(std::string_view address) {
  return !address.empty() && address.size() <= kProviderAddressBytesMax &&
         address.find('\n') == std::string_view::npos && address.find('\0') == std::string_view::npos;
}

struct KnownAddresses {
  SharedRecord record;
  AddressBook book;
};

Result<KnownAddresses> known_at(Repository& provider) {
  FRESHET_ASSIGN(SharedRecord record, provider.shared_record(kAddressesKey));
  AddressBook book;
  if (record.value) {
    // A damaged one says nothing. What is true is said again, and replaces it.
    if (auto decoded = AddressBook::decode(*record.value)) book = *std::move(decoded);
  }
  return KnownAddresses{.record = std::move(record), .book = std::move(book)};
}

// `change` says whether there is anything to write.
template <typename Change>
Result<AddressBook> change_at(Repository& provider, const Change& change) {
  for (int tries = 0; tries < kAddressTriesMax; ++tries) {
    FRESHET_ASSIGN(KnownAddresses known, known_at(provider));
    const AddressBook before = known.book;
    FRESHET_TRY(change(known.book));
    if (known.book == before) return before;
    const SharedRecord next{.key = kAddressesKey, .value = known.book.encode()};
    const Status changed = provider.change_shared_records(std::span(&known.record, 1), std::span(&next, 1));
    if (changed) return std::move(known.book);
    if (changed.error().code() != Code::failed_precondition) return fail(changed.error());
  }
  return fail(Code::unavailable, "the record of the providers' addresses is changed by too many at once");
}

}  // namespace

std::string AddressBook::address_of(const std::string& id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::string() : found->second.address;
}

Status AddressBook::say(const std::string& id, const std::string& address) {
  if (!is_id(id)) return fail(Code::invalid_argument, "no provider has such an id");
  if (!is_address(address)) {
    return fail(Code::invalid_argument, format("a provider's address has 1 to {} characters, none of them a line's end",
                                               kProviderAddressBytesMax));
  }
  if (entries_.size() >= kProvidersMax && entries_.count(id) == 0) {
    return fail(Code::out_of_space, format("a placement has 1 to {} providers", kProvidersMax));
  }
  Entry& entry = entries_[id];
  if (entry.address == address) return {};
  if (entry.change == std::numeric_limits<std::uint64_t>::max()) return fail(Code::out_of_space, "too many changes");
  entry = {.change = entry.change + 1, .address = address};
  return {};
}

bool AddressBook::merge(const AddressBook& other) {
  bool any = false;
  for (const auto& [id, entry] : other.entries_) {
    if (entries_.size() >= kProvidersMax && entries_.count(id) == 0) continue;
    Entry& mine = entries_[id];
    // One that was restored from a copy may count a change twice. Then its address decides, and it says the right one
    // again when it meets the wrong one.
    if (!(mine < entry)) continue;
    mine = entry;
    any = true;
  }
  return any;
}

std::string AddressBook::encode() const {
  std::string text;
  for (const auto& [id, entry] : entries_) text += format("{} {} {}\n", id, entry.change, entry.address);
  return text;
}

Result<AddressBook> AddressBook::decode(std::string_view text) {
  AddressBook book;
  const auto damaged = [] { return fail(Code::corrupt, "the record of the providers' addresses is damaged"); };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return damaged();
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const std::size_t first = line.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos) return damaged();
    Entry entry{.change = 0, .address = std::string(line.substr(second + 1))};
    const char* const number_end = line.data() + second;
    const auto [at, error] = std::from_chars(line.data() + first + 1, number_end, entry.change);
    if (error != std::errc() || at != number_end || entry.change == 0) return damaged();
    std::string id(line.substr(0, first));
    const bool in_order = book.entries_.empty() || book.entries_.rbegin()->first < id;
    if (!is_id(id) || !is_address(entry.address) || !in_order || book.entries_.size() >= kProvidersMax) {
      return damaged();
    }
    book.entries_.emplace(std::move(id), std::move(entry));
  }
  return book;
}

Result<AddressBook> addresses_at(Repository& provider) {
  FRESHET_ASSIGN(KnownAddresses known, known_at(provider));
  return std::move(known.book);
}

Status say_address(Repository& provider, const std::string& id, const std::string& address) {
  FRESHET_TRY(change_at(provider, [&](AddressBook& book) { return book.say(id, address); }));
  return {};
}

Result<AddressBook> exchange_addresses(Repository& one, Repository& other) {
  FRESHET_ASSIGN(const AddressBook theirs, addresses_at(other));
  const auto take = [](const AddressBook& from) {
    return [&from](AddressBook& book) -> Status {
      book.merge(from);
      return {};
    };
  };
  FRESHET_ASSIGN(const AddressBook mine, change_at(one, take(theirs)));
  FRESHET_ASSIGN(const AddressBook both, change_at(other, take(mine)));
  if (both == mine) return both;
  return change_at(one, take(both));
}

}  // namespace freshet::cluster
