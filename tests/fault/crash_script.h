// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The steps that the program crash_writer takes when it is asked for all that changes a repository, and a model in
/// memory of what they come to. The seed and a step's number decide it, so the test that kills the program knows what
/// it was about.

#include <map>
#include <set>
#include <string>

#include "core/base/format.h"
#include "tests/repo/world.h"

namespace freshet {

class CrashScript {
 public:
  static constexpr const char* kModel = "crash";

  struct State {
    std::map<VersionNumber, TestVersion> live;
    std::set<VersionNumber> retired;
    std::map<std::string, VersionNumber> aliases;
  };

  explicit CrashScript(std::uint64_t seed) : seed_(seed) {}

  /// How many steps were taken.
  std::uint64_t step() const { return step_; }
  const State& state() const { return state_; }

  /// The next step: in the model, and in `repository` unless it is null. Error: what the repository said.
  Status take(Repository* repository) {
    random_.seed(seed_ * 1'000'003 + step_++);
    const std::uint64_t kind = random_() % 10;
    if (state_.live.empty() || kind < 5) return put_some(repository, kind);
    if (kind == 5) return move_alias(repository);
    if (kind == 6) return repository == nullptr ? Status() : gc(*repository);
    return retire(repository);
  }

 private:
  // A lineage in which each version is based on one that is there. Kinds: 0 and 1 with a new large tensor and so too
  // large for the log, 2 plain and small, 3 fine-tuned and kept as differences, 4 equal content that came without
  // lineage.
  Status put_some(Repository* repository, std::uint64_t kind) {
    const VersionNumber number = ++last_number_;
    const VersionId id = test_id(number);
    const auto architecture = test_architecture({100, 20'000, 300'000, 4'500'000});
    TestVersion version;
    Repository::PutOptions options;
    if (state_.live.empty()) {
      version = make_version(kModel, id, architecture, nullptr, {}, random_);
    } else if (const TestVersion& base = some_live(); kind == 4) {
      version.manifest = base.manifest;
      version.manifest.id = id;
      version.manifest.ancestor.reset();
      version.manifest.ancestor_name = {};
      version.manifest.owners = OwnerMap::all_written_by(id, base.bytes.size());
      version.bytes = base.bytes;
      change_some(version, 0);
      options.dedup = true;
    } else {
      version = make_version(kModel, id, architecture, &base,
                             kind < 2 ? std::vector<std::uint32_t>{0, 3} : std::vector<std::uint32_t>{0, 1}, random_);
      if (kind == 3) {
        change_some(version, 2);
        version.manifest.owners = version.manifest.owners.with_written(id, std::vector<std::uint32_t>{2});
        options.deltas = true;
      }
    }
    version.manifest.name = {.model = kModel, .number = number};
    Status done;
    if (repository != nullptr) {
      const auto name = put(*repository, version, options);
      if (!name) done = fail(name.error());
    }
    state_.live.emplace(number, std::move(version));
    return done;
  }

  void change_some(TestVersion& version, std::size_t tensor) {
    auto& bytes = version.bytes[tensor];
    for (std::size_t at = random_() % 50; at < bytes.size(); at += 1000) bytes[at] ^= std::byte{1};
    version.manifest.digests[tensor] = digest_of(bytes);
  }

  Status move_alias(Repository* repository) {
    const std::string alias = random_() % 2 == 0 ? "best" : "last";
    const auto found = state_.aliases.find(alias);
    const VersionNumber expected = found == state_.aliases.end() ? 0 : found->second;
    const bool remove = expected != 0 && random_() % 4 == 0;
    const VersionNumber desired = remove ? 0 : some_live().manifest.name.number;
    state_.aliases.erase(alias);
    if (!remove) state_.aliases.emplace(alias, desired);
    return repository == nullptr ? Status() : repository->set_alias(kModel, alias, expected, desired);
  }

  Status retire(Repository* repository) {
    const VersionNumber number = some_live().manifest.name.number;
    for (const auto& [alias, means] : state_.aliases) {
      if (means == number) return {};
    }
    state_.live.erase(number);
    state_.retired.insert(number);
    if (repository == nullptr) return {};
    const auto report = repository->retire({.model = kModel, .number = number}, {});
    return report ? Status() : Status(fail(report.error()));
  }

  static Status gc(Repository& repository) {
    const auto report = repository.gc({}, {});
    return report ? Status() : Status(fail(report.error()));
  }

  const TestVersion& some_live() {
    auto at = state_.live.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_() % state_.live.size()));
    return at->second;
  }

  const std::uint64_t seed_;
  std::uint64_t step_ = 0;
  VersionNumber last_number_ = 0;
  std::mt19937_64 random_;
  State state_;
};

/// Empty when the repository is just so; otherwise the first thing that is not.
inline std::string unlike(const Repository& repository, const CrashScript::State& state) {
  const std::string model = CrashScript::kModel;
  const auto stat = repository.stat();
  if (!stat) return stat.error().message();
  if (stat->versions != state.live.size()) return format("{} versions, not {}", stat->versions, state.live.size());
  if (stat->retired_versions != state.retired.size()) return format("{} are retired", stat->retired_versions);
  for (const auto& [number, version] : state.live) {
    const auto bytes = read_all(repository, {.model = model, .number = number});
    if (!bytes) return bytes.error().message();
    if (*bytes != version.bytes) return format("version {} has other bytes", number);
  }
  for (const VersionNumber number : state.retired) {
    const auto gone = repository.get({.model = model, .number = number});
    if (gone || gone.error().code() != Code::not_found) return format("version {} is not retired", number);
  }
  std::map<std::string, VersionNumber> aliases;
  const std::vector<Alias> found = repository.aliases(model).value();
  for (const Alias& alias : found) aliases.emplace(alias.name, alias.number);
  return aliases == state.aliases ? "" : "other aliases";
}

}  // namespace freshet
