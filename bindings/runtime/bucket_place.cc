// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/bucket_place.h"

#include <unistd.h>

#include <array>
#include <optional>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/cluster/providers.h"
#include "repo/rados/rados_store.h"
#include "repo/s3/s3_store.h"

namespace freshet {
namespace {

constexpr Duration kOwnWithin = std::chrono::seconds(30);

/// For those whom an owner without an address keeps out.
std::string name_of_this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host.front() = '\0';
  return format("{}, process {}", host.front() == '\0' ? "an unknown host" : shown(host.data(), 128), ::getpid());
}

struct OpenedStore {
  std::shared_ptr<ObjectStore> store;
  /// Where this process itself has the right to what the owner's signed requests name.
  std::shared_ptr<SignedObjects> signed_objects;
};

Result<OpenedStore> open_store(const std::string& place) {
  if (is_rados_address(place)) {
    FRESHET_ASSIGN(const RadosAddress address, parse_rados_address(place));
    FRESHET_ASSIGN(std::shared_ptr<RadosStore> store, open_rados_store(address));
    return OpenedStore{.store = store, .signed_objects = store};
  }
  FRESHET_ASSIGN(const S3Address address, parse_s3_address(place));
  FRESHET_ASSIGN(std::shared_ptr<ObjectStore> store, open_s3_store(address));
  return OpenedStore{.store = std::move(store), .signed_objects = nullptr};
}

Result<std::unique_ptr<BucketMember>> join(std::shared_ptr<ObjectStore> store, const ServedOwner& self,
                                           RepositoryAccess access) {
  BucketOptions options;
  options.create = access == RepositoryAccess::create || access == RepositoryAccess::own;
  options.read_only = access == RepositoryAccess::read;
  options.log.self.address = self.address.empty() ? name_of_this_process() : self.address;
  options.log.self.public_key = self.public_key;
  return BucketMember::open(std::move(store), options);
}

/// It takes part in nothing, and sees the log's end.
Result<ServedOwner> find_owner(const std::shared_ptr<ObjectStore>& store) {
  FRESHET_ASSIGN(const std::unique_ptr<BucketMember> member, join(store, {}, RepositoryAccess::read));
  return served_owner(*member);
}

Result<std::unique_ptr<Repository>> through(const ServedOwner& owner, const OpenedStore& opened,
                                            const SecurityOptions& security) {
  RemoteRepositoryOptions options;
  FRESHET_ASSIGN(options.security, security_for(owner, security));
  options.find_owner = [store = opened.store] { return find_owner(store); };
  options.signed_objects = opened.signed_objects;
  return open_providers(owner.address, options);
}

bool is_absence(const Error& error) { return error.code() == Code::unavailable || error.code() == Code::timed_out; }

}  // namespace

bool is_store_place(const std::string& place) { return is_s3_address(place) || is_rados_address(place); }

ServedOwner served_owner(const BucketMember& member) {
  const std::optional<log::LogMember> owner = member.owner();
  // The name of a process is no address.
  if (!owner || !is_repository_address(owner->address)) return {};
  return {.address = owner->address, .public_key = owner->public_key};
}

Result<std::unique_ptr<BucketMember>> join_bucket(const std::string& place, const ServedOwner& self,
                                                  RepositoryAccess access) {
  FRESHET_ASSIGN(OpenedStore opened, open_store(place));
  return join(std::move(opened.store), self, access);
}

Result<OpenedBucket> open_bucket(const std::string& place, RepositoryAccess access, const SecurityOptions& security) {
  const Time deadline = deadline_in(kOwnWithin);
  FRESHET_ASSIGN(const OpenedStore opened_store, open_store(place));
  FRESHET_ASSIGN(const std::unique_ptr<BucketMember> member, join(opened_store.store, {}, access));
  if (access == RepositoryAccess::read) return OpenedBucket{.backend = member->read(), .through = nullptr};
  for (;;) {
    const ServedOwner owner = access == RepositoryAccess::own ? ServedOwner() : served_owner(*member);
    std::optional<Error> silent;
    if (!owner.address.empty()) {
      Result<std::unique_ptr<Repository>> opened = through(owner, opened_store, security);
      if (opened) return OpenedBucket{.backend = nullptr, .through = std::move(*opened)};
      if (!is_absence(opened.error())) return fail(std::move(opened).error());
      silent = std::move(opened).error();
    }
    Result<std::unique_ptr<Backend>> backend = member->own(deadline);
    if (backend) return OpenedBucket{.backend = std::move(*backend), .through = nullptr};
    const bool is_owned = backend.error().code() == Code::unavailable;
    if (is_owned && access != RepositoryAccess::own && served_owner(*member) != owner &&
        system_clock().now() < deadline) {
      continue;  // Another one took it over meanwhile.
    }
    if (!silent) return fail(std::move(backend).error());
    if (!is_owned) return fail(std::move(backend).error().with_context(silent->message()));
    return fail(Code::unavailable,
                format("{}: the owner at {} does not answer this process, but the log shows that it lives; check that "
                       "this host reaches the address ({})",
                       place, owner.address, silent->message()));
  }
}

}  // namespace freshet
