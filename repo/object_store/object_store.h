// SPDX-License-Identifier: Apache-2.0
#pragma once

/// An object store keeps objects: bytes under a key, each written by one request. Freshet asks three things of a store:
/// creation that lets one writer win, reads that see what was written, and listings in order. There is one interface,
/// and one conformance suite (tests/conformance/object_store_conformance.h) that every store runs. The memory store
/// (memory_object_store.h) is the tutorial.
///
/// Keys are relative to the store's place. A key has 1 to 512 bytes of A-Z a-z 0-9 . _ - and /, with none of its parts
/// between the slashes empty, "." or "..". Other keys get invalid_argument. Beside a key "a", use no key "a/b": some
/// stores keep objects in folders.
///
/// Any thread. Each call ends by its deadline (core/base/deadline.h), or a little later; it ends earlier with
/// `cancelled` if an Interruption asks for it. A store repeats a request that the server was too busy for, with growing
/// pauses, while the deadline allows it and at most a few times.
///
/// Errors of every call, besides those that the call names:
///   invalid_argument: a bad key.
///   failed_precondition: wrong or expired credentials, missing rights, no such bucket, a clock that differs from the
///     store's by too much. The same call fails again until a person acts.
///   unavailable: no connection, a busy store, an answer that is not the store's (a proxy's page).
///   timed_out: no answer before the deadline.
///   cancelled, io_error.
/// After unavailable, timed_out, cancelled or io_error, a write may have been applied, or may still be applied later.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet {

/// The largest object that Freshet writes or reads: one request, no multipart.
inline constexpr std::uint64_t kObjectBytesMax = std::uint64_t{64} << 20;
/// More keys than this do not come in one page.
inline constexpr std::size_t kListKeysMax = 1000;

struct ObjectHead {
  std::uint64_t bytes = 0;
  /// When the object was written, in seconds since 1970: by the store's clock; in a pool of Ceph, by its writer's.
  std::int64_t modified_unix_s = 0;
  /// CRC-32C of the bytes, if the store keeps it.
  std::optional<std::uint32_t> crc32c;
};

struct Object {
  std::string bytes;
  ObjectHead head;
};

struct ListedObject {
  std::string key;
  std::uint64_t bytes = 0;
  std::int64_t modified_unix_s = 0;
};

struct ObjectPage {
  std::vector<ListedObject> objects;  ///< In the order of the keys' bytes.
  bool more = false;                  ///< True: list again, after the last key of this page.
};

/// The outcome of a creation.
enum class Created : std::uint8_t {
  created,    ///< This call made the object.
  exists,     ///< An object stands there. An earlier attempt may have made it, also one of this very call: read it.
  unsettled,  ///< No answer tells. The object may exist, or may be made later. Only an object that stands there settles
              ///< it.
  refused,    ///< The store did not make the object, and will not: none of the call's requests is still on its way.
};
/// "created", "exists", "unsettled", "refused".
std::string_view name_of(Created created);

struct Creation {
  Created outcome = Created::unsettled;
  /// The reason of `unsettled` and `refused`. Otherwise its message is empty.
  Error error = Error(Code::unavailable, "");
};

/// A request that its holder may send without credentials, until its end. All `headers` must be sent as they are.
struct SignedRequest {
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  /// "memory", "s3", "rados".
  virtual std::string_view kind() const = 0;
  /// The place as messages name it; never a secret.
  virtual std::string place() const = 0;

  /// So many transfers of large bytes at a time get the most out of the way to the store. Further ones wait for their
  /// turn, and small calls do not wait for them.
  virtual std::size_t transfers_max() const { return 4; }

  /// Makes the object if there is none with this key; never changes one. At most kObjectBytesMax bytes. `crc32c` is of
  /// the bytes, if the caller has computed it: the store refuses others (unavailable).
  virtual Creation create(std::string_view key, Bytes bytes, Time deadline,
                          std::optional<std::uint32_t> crc32c = std::nullopt) = 0;
  /// Makes or replaces the object. If several writers put, any of them may be the last. A request whose answer is lost
  /// is repeated, and may then be done once more, much later. So all puts of one key should bring the same bytes.
  virtual Status put(std::string_view key, Bytes bytes, Time deadline) = 0;
  /// No error if there is no such object. May be done once more, much later: do not use the key again.
  virtual Status remove(std::string_view key, Time deadline) = 0;

  /// The whole object. not_found: there is none. out_of_space: it has more than `bytes_max` bytes.
  virtual Result<Object> get(std::string_view key, std::uint64_t bytes_max, Time deadline) const = 0;
  /// Reads out.size() bytes from `offset`. not_found: there is no such object. corrupt: it is shorter.
  virtual Status read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const = 0;
  /// not_found: there is no such object.
  virtual Result<ObjectHead> head(std::string_view key, Time deadline) const = 0;
  /// The first `keys_max` (1 to kListKeysMax) objects with a key that starts with `prefix` and comes after `after`, by
  /// the keys' bytes. `prefix` and `after` may be empty, and need not be keys.
  virtual Result<ObjectPage> list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                                  Time deadline) const = 0;
  /// The store's clock: seconds since 1970.
  virtual Result<std::int64_t> now_unix_s(Time deadline) const = 0;

  /// A request to GET the object or a range of it, for `life` (1 s to 1 h) from now. Asks no server.
  virtual Result<SignedRequest> sign_get(std::string_view key, Duration life) const = 0;
  /// A request to create the object with exactly `bytes` bytes of this CRC-32C, and not to replace one. Asks no server.
  virtual Result<SignedRequest> sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                            Duration life) const = 0;
};

/// Sends signed requests, without credentials. Any thread; calls and errors as those of an ObjectStore.
/// failed_precondition, too: the request's life has ended.
class SignedObjects {
 public:
  virtual ~SignedObjects() = default;
  virtual Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const = 0;
  virtual Creation create(const SignedRequest& request, Bytes bytes, Time deadline) = 0;
};

/// CRC-32C (Castagnoli), as stores compute it over an object's bytes.
std::uint32_t crc32c_of(Bytes bytes);

/// invalid_argument, unless `key` is a key (see above).
Status check_object_key(std::string_view key);

}  // namespace freshet
