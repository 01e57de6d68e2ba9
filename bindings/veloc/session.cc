// SPDX-License-Identifier: Apache-2.0
#include "bindings/veloc/session.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "bindings/runtime/checkpoint_place.h"
#include "bindings/veloc/region_table.h"
#include "core/base/bytes.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/words/classic_locale.h"

namespace freshet::veloc {
namespace {

std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

Result<int> free_port() {
  const FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const as_any = reinterpret_cast<sockaddr*>(&address);
  const bool done =
      probe && ::bind(probe.get(), as_any, length) == 0 && ::getsockname(probe.get(), as_any, &length) == 0;
  if (!done) return fail_errno(errno, "find a free port");
  return static_cast<int>(ntohs(address.sin_port));
}

/// Ranks may share it, and remove it all at once: what one of them misses there, another one took.
Status remove_folder(const std::string& path) {
  std::error_code failure;
  do {
    std::filesystem::remove_all(path, failure);
  } while (failure == std::errc::no_such_file_or_directory && std::filesystem::exists(path));
  if (failure && failure != std::errc::no_such_file_or_directory) {
    return fail_errno(failure.value(), format("remove {}", path));
  }
  return {};
}

LaidTensor own_bytes(std::string name, std::uint64_t bytes) {
  return {.spec = {.name = std::move(name), .dtype = DType::u8, .shape = {bytes}, .role = Role::opaque},
          .layout = {.cut = Cut::own}};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(std::unique_ptr<Communicator> ranks, Config config, std::string suffix) {
  std::error_code failure;
  std::filesystem::create_directories(config.scratch, failure);
  auto session = std::unique_ptr<Session>(new Session(std::move(ranks), std::move(config), std::move(suffix)));
  const Config& given = session->config_;
  const std::string alike = format("VELOC_Init: group {}, meet \"{}\", persistent {}", to_string(given.group),
                                   given.meet, given.persistent.empty() ? "no" : "yes");
  FRESHET_TRY(
      session->agree(alike, failure ? fail_errno(failure.value(), format("make {}", given.scratch)) : Status()));
  return session;
}

Status Session::agree(const std::string& call, const Status& own) {
  // The call, and behind a zero the error: its code as a letter, and its words.
  std::string said = call + '\0';
  if (!own) said += static_cast<char>('A' + static_cast<int>(own.error().code())) + own.error().message();
  const std::vector<std::string> all = ranks_->gather(said);
  std::vector<std::string> calls;
  std::vector<std::string> errors;
  for (const std::string& one : all) {
    calls.push_back(one.substr(0, one.find('\0')));
    errors.push_back(one.substr(calls.back().size() + 1));
  }
  if (!own) return own;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!errors[rank].empty()) {
      return fail(static_cast<Code>(errors[rank].front() - 'A'), format("rank {}: {}", rank, errors[rank].substr(1)));
    }
    if (calls[rank] != calls.front()) {
      return refuse(format("rank {} is at \"{}\", rank 0 at \"{}\"", rank, calls[rank], calls.front()));
    }
  }
  return {};
}

bool Session::unprotect(int id, const std::string& name) {
  const auto named = regions_.find(name);
  if (named == regions_.end() || named->second.erase(id) == 0) return false;
  if (named->second.empty()) regions_.erase(named);
  return true;
}

const std::map<int, Session::Region>& Session::regions_of(const std::string& name) const {
  static const std::map<int, Region> none;
  for (const std::string& key : {name, std::string()}) {
    if (const auto at = regions_.find(key); at != regions_.end()) return at->second;
  }
  return none;
}

Status Session::check(const std::string& name, int version) const {
  FRESHET_TRY(check_model_name(name));
  if (version < 0) return refuse(format("version {}: 0 or more", version));
  return {};
}

std::string Session::file_of(const std::string& name, int version) const {
  return format("{}/{}-{}-{}.dat", config_.scratch, model_of(name), ranks_->rank(), version);
}

/// A free port at rank 0, which all learn; or what the configuration says, for ranks on several machines.
Result<std::string> Session::meeting_place() {
  if (ranks_->ranks() == 1) return std::string();
  if (!config_.meet.empty()) return config_.meet;
  std::string own = machine_name();
  // The others wait for rank 0, whatever it finds.
  const Result<int> port = ranks_->rank() == 0 ? free_port() : 0;
  if (ranks_->rank() == 0) own += format(" {}", port.value_or(0));
  const std::vector<std::string> all = ranks_->gather(own);
  if (!port) return fail(port.error());
  if (all.front().ends_with(" 0")) return fail(Code::unavailable, "rank 0 finds no free port");
  const std::string first = all.front().substr(0, all.front().find(' '));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == first) continue;
    return refuse(
        format("ranks are on {} and on {}: say meet = tcp://HOST:PORT, where rank 0 listens", first, all[rank]));
  }
  return format("tcp://127.0.0.1:{}", all.front().substr(first.size() + 1));
}

Result<std::unique_ptr<Checkpointer>> Session::open_checkpointer(const std::string& name, std::size_t regions,
                                                                 const Sizes& most) {
  Checkpointer::Options options{.model = model_of(name), .rank = ranks_->rank(), .ranks = ranks_->ranks()};
  options.security = config_.security;
  set_external(options, config_.persistent, config_.persistent_server_key);
  // Before they meet: where rank 0 has no repository, the others would wait for it there.
  bool is_damaged = false;
  const auto open_it = [&]() -> Status {
    if (!options.external || ranks_->rank() != 0) return {};
    const Result<std::shared_ptr<Repository>> repository = options.external();
    // A damaged one is passed over where the scratch has as much.
    is_damaged = !repository && repository.error().code() == Code::corrupt;
    if (!repository && !is_damaged) return fail(repository.error());
    options.external = [repository] { return repository; };
    return {};
  };
  FRESHET_TRY(agree(format("open {}", name), caught(open_it)));
  const std::vector<std::string> damaged = ranks_->gather(is_damaged ? "damaged" : "");
  last_level_counts_ = std::ranges::all_of(damaged, &std::string::empty);
  FRESHET_ASSIGN(options.meet, meeting_place());
  options.host = config_.host;
  options.local = {config_.scratch};
  options.group = config_.group;
  options.when_behind = levels::WhenBehind::wait;
  options.keep = config_.keep;
  options.limit_bytes_per_second = config_.limit_bytes_per_second;
  options.patience = config_.patience;
  options.lost_after = std::chrono::seconds(10);  // A program that computes on all cores is not lost.
  std::vector<LaidTensor> tensors = {own_bytes("regions", kTableBytes)};
  if (more_bytes(regions) > 0) tensors.push_back(own_bytes("regions.more", more_bytes(regions)));
  for (const auto& [id, bytes] : most) {
    tensors.push_back(own_bytes(id == kFile ? "file" : format("region.{}", id), bytes));
  }
  names_.insert(name);
  return Checkpointer::open(std::move(options), std::move(tensors));
}

std::vector<std::vector<std::byte>> Session::buffers_for(std::size_t regions, const Sizes& most) {
  std::vector<std::vector<std::byte>> buffers(1, std::vector<std::byte>(kTableBytes));
  if (more_bytes(regions) > 0) buffers.emplace_back(more_bytes(regions));
  for (const auto& [id, bytes] : most) buffers.emplace_back(bytes);
  return buffers;
}

std::vector<std::byte> Session::take_table(std::vector<std::vector<std::byte>>& buffers, std::size_t regions) {
  std::vector<std::byte> table = std::move(buffers.front());
  buffers.erase(buffers.begin());
  if (more_bytes(regions) == 0) return table;
  table.insert(table.end(), buffers.front().begin(), buffers.front().end());
  buffers.erase(buffers.begin());
  return table;
}

Status Session::close(const std::string& name) {
  Status finished;
  if (const auto at = jobs_.find(name); at != jobs_.end()) {
    finished = caught([&] { return at->second.checkpointer->finish(config_.patience); });
    if (last_ && last_->name == name) {
      if (const Status there = wait(); !there && last_ && !last_->error) last_->error = there.error();
    }
    jobs_.erase(name);
  }
  return agree(format("close {}", name), finished);
}

Status Session::begin(const std::string& name, int version) {
  if (checkpoint_ || restart_)
    return fail(Code::failed_precondition, "a checkpoint or a restart is still open: end it first");
  FRESHET_TRY(check(name, version));
  std::error_code failure;  // What an earlier life left is no file of this version.
  std::filesystem::remove(file_of(name, version), failure);
  if (failure) return fail_errno(failure.value(), format("remove {}", file_of(name, version)));
  loaded_.reset();
  checkpoint_ = UnderWay{.name = name, .version = version, .held = {}};
  return {};
}

Result<std::set<std::int64_t>> Session::chosen(Selection selection, const std::set<int>& ids,
                                               const std::set<std::int64_t>& all) const {
  std::set<std::int64_t> taken;
  for (const int id : ids) {
    if (!all.contains(id)) return refuse(format("there is no region {}", id));
  }
  for (const std::int64_t id : all) {
    const bool is_named = id != kFile && ids.contains(static_cast<int>(id));
    if (selection == Selection::all || is_named == (selection == Selection::some)) taken.insert(id);
  }
  if (taken.empty()) return refuse("no region is chosen");
  return taken;
}

Status Session::capture(Selection selection, const std::set<int>& ids) {
  if (!checkpoint_) return fail(Code::failed_precondition, "no checkpoint was begun");
  const auto& regions = regions_of(checkpoint_->name);
  std::set<std::int64_t> all;
  for (const auto& [id, region] : regions) all.insert(id);
  FRESHET_ASSIGN(const auto taken, chosen(selection, ids, all));
  for (const std::int64_t id : taken) {
    const Region& region = regions.at(static_cast<int>(id));
    checkpoint_->held[id].assign(region.memory, region.memory + region.bytes);
  }
  return {};
}

Status Session::end(bool success) {
  UnderWay ended;
  const bool was_begun = checkpoint_.has_value();
  if (was_begun) ended = *std::move(checkpoint_);
  checkpoint_.reset();
  const std::string call = was_begun ? format("checkpoint {} {}", ended.name, ended.version) : "checkpoint";
  const std::string path = was_begun ? file_of(ended.name, ended.version) : "";
  const auto take_file = [&]() -> Status {
    if (!was_begun) return fail(Code::failed_precondition, "no checkpoint was begun");
    if (!success) return fail(Code::cancelled, "the program says that its checkpoint failed");
    std::error_code failure;
    const auto bytes = std::filesystem::file_size(path, failure);
    if (failure && failure != std::errc::no_such_file_or_directory) return fail_errno(failure.value(), path);
    if (!failure) {
      std::vector<std::byte>& content = ended.held[kFile];
      content.resize(bytes);
      std::ifstream file(path, std::ios::binary);
      file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(bytes));
      if (!file) return fail(Code::io_error, format("cannot read {}", path));
    }
    if (ended.held.empty()) return fail(Code::failed_precondition, "nothing was captured, and no file written");
    if (ended.held.size() > kRegionsMax) {
      return refuse(format("{} regions; {} at most", ended.held.size(), kRegionsMax));
    }
    return {};
  };
  VersionNumber version = 0;
  const auto make = [&]() -> Status {
    FRESHET_TRY(agree(call, caught(take_file)));
    std::string own;
    for (const auto& [id, bytes] : ended.held) own += format("{} {} ", id, bytes.size());
    Sizes most;
    for (const std::string& one : ranks_->gather(own)) {
      WordStream list(one);
      std::int64_t id = 0;
      std::uint64_t bytes = 0;
      while (list >> id >> bytes) most[id] = std::max(most[id], bytes);
    }
    if (most.size() > kRegionsMax) return refuse(format("{} regions; {} at most", most.size(), kRegionsMax));
    const auto at = jobs_.find(ended.name);
    if (at == jobs_.end() || at->second.most != most) {
      FRESHET_TRY(close(ended.name));
      Job job{.checkpointer = nullptr, .most = most};
      const Status opened = caught([&]() -> Status {
        FRESHET_ASSIGN(job.checkpointer, open_checkpointer(ended.name, most.size(), most));
        std::vector<std::vector<std::byte>> unused = buffers_for(most.size(), most);
        const std::vector<MutableBytes> views(unused.begin(), unused.end());
        FRESHET_TRY(job.checkpointer->restore(views, {.from_nothing = true, .same_history = true, .version = {}}));
        return {};
      });
      FRESHET_TRY(agree(call + ": opened", opened));
      jobs_[ended.name] = std::move(job);
    }
    const Status captured = agree(call + ": captured", caught([&] { return capture_all(ended, most, version); }));
    // Ranks that do not have the same versions any more meet anew for the next one.
    if (!captured) jobs_.erase(ended.name);
    return captured;
  };
  const Status made = make();
  if (!made) {
    if (was_begun) last_ = Last{.name = ended.name, .version = 0, .error = made.error()};
    return made;
  }
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  last_ = Last{.name = ended.name, .version = version, .error = {}};
  return config_.sync ? wait() : Status();
}

Status Session::capture_all(const UnderWay& ended, const Sizes& most, VersionNumber& version) {
  std::vector<std::byte> table(kTableBytes + more_bytes(most.size()));
  std::size_t word = 0;
  const auto put = [&](std::uint64_t value) { store_little_endian(table.data() + kWord * word++, value); };
  put(ranks_->ranks());
  put(most.size());
  std::vector<Bytes> views = {Bytes(table).first(kTableBytes)};
  if (table.size() > kTableBytes) views.push_back(Bytes(table).subspan(kTableBytes));
  std::vector<std::vector<std::byte>> padded;
  padded.reserve(most.size());
  for (const auto& [id, bytes] : most) {
    const auto held = ended.held.find(id);
    const bool has = held != ended.held.end();
    put(static_cast<std::uint64_t>(id));
    put(bytes);
    put(has ? held->second.size() : kAbsent);
    if (has && held->second.size() == bytes) {
      views.emplace_back(held->second);
      continue;
    }
    auto& filled = padded.emplace_back(bytes);
    if (has && !held->second.empty()) std::memcpy(filled.data(), held->second.data(), held->second.size());
    views.emplace_back(filled);
  }
  FRESHET_ASSIGN(const auto captured,
                 jobs_.at(ended.name).checkpointer->checkpoint(static_cast<std::uint64_t>(ended.version), views));
  version = captured.version;
  return {};
}

CheckpointLevel Session::level_of(const Checkpointer& checkpointer) const {
  const std::vector<CheckpointLevel>& levels = checkpointer.levels();
  return last_level_counts_ ? levels.back() : levels[levels.size() - 2];
}

Status Session::wait() {
  if (!last_) return {};
  if (last_->error) return fail(*last_->error);
  const Checkpointer& checkpointer = *jobs_.at(last_->name).checkpointer;
  const Status there = checkpointer.wait(last_->version, level_of(checkpointer), config_.patience);
  if (there) {
    last_.reset();
  } else if (there.error().code() != Code::timed_out) {
    last_->error = there.error();
  }
  return there;
}

Result<bool> Session::finished() const {
  if (!last_) return true;
  if (last_->error) return fail(*last_->error);
  const Checkpointer& checkpointer = *jobs_.at(last_->name).checkpointer;
  return checkpointer.poll(last_->version, level_of(checkpointer));
}

Status Session::checkpoint(const std::string& name, int version) {
  // What became of the checkpoint before is told, and does not cost this one.
  const Status before = wait();
  const Status captured = caught([&]() -> Status {
    FRESHET_TRY(begin(name, version));
    return capture(Selection::all, {});
  });
  const Status ended = end(captured.has_value());
  if (!captured) return captured;
  if (!ended) return ended;
  if (!before) return fail(Error(before.error()).with_context("this checkpoint is taken, the one before it failed"));
  return {};
}

Result<std::string> Session::file() const {
  const auto& under_way = checkpoint_ ? checkpoint_ : restart_;
  if (!under_way) return fail(Code::failed_precondition, "no checkpoint and no restart was begun");
  return file_of(under_way->name, under_way->version);
}

Status Session::cleanup(const std::string& name) {
  FRESHET_TRY(agree(format("cleanup {}", name), check(name, 0)));
  loaded_.reset();
  const Status closed = close(name);
  const Status removed = caught([&] { return remove_folder(format("{}/{}", config_.scratch, model_of(name))); });
  // Nobody goes on, and makes files there again, while others still remove.
  const Status all_removed = agree(format("cleaned {}", name), removed);
  return closed ? all_removed : closed;
}

Status Session::finalize(bool clean) {
  std::string own;
  for (const std::string& name : names_) own += name + " ";
  std::set<std::string> names;
  for (const std::string& one : ranks_->gather(own)) {
    WordStream list(one);
    for (std::string name; list >> name;) names.insert(name);
  }
  Status first;
  for (const std::string& name : names) {
    const Status closed = clean ? cleanup(name) : close(name);
    if (first && !closed) first = closed;
  }
  if (first && last_ && last_->error) first = fail(*last_->error);
  return first;
}

}  // namespace freshet::veloc
