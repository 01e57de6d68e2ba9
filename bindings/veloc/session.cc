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

#include "bindings/runtime/repository_folder.h"
#include "core/file_descriptor.h"
#include "core/format.h"
#include "core/little_endian.h"

namespace freshet::veloc {
namespace {

/// The tensor `regions`: how many ranks there are, how many regions, and of each its id, the most bytes that any rank
/// has of it, and those of this rank; kAbsent where it has none.
constexpr std::size_t kTableBytes = std::size_t{64} << 10;
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::size_t kRegionsMax = kTableBytes / (3 * kWord) - 1;
constexpr std::uint64_t kAbsent = UINT64_MAX;

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

LaidTensor own_bytes(std::string name, std::uint64_t bytes) {
  return {.spec = {.name = std::move(name), .dtype = DType::u8, .shape = {bytes}, .role = Role::opaque},
          .layout = {.cut = Cut::own}};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(std::unique_ptr<Communicator> ranks, Words words, std::string suffix) {
  std::error_code failure;
  std::filesystem::create_directories(words.scratch, failure);
  auto session = std::unique_ptr<Session>(new Session(std::move(ranks), std::move(words), std::move(suffix)));
  FRESHET_TRY(
      session->agree(failure ? fail_errno(failure.value(), format("make {}", session->words_.scratch)) : Status()));
  return session;
}

Status Session::agree(const Status& own) {
  const std::vector<std::string> all = ranks_->gather(own ? std::string() : own.error().message());
  if (!own) return own;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return fail(Code::unavailable, format("rank {}: {}", rank, all[rank]));
  }
  return {};
}

Status Session::check(const std::string& name, int version) const {
  FRESHET_TRY(check_model_name(name));
  if (version < 0) return refuse(format("version {}: 0 or more", version));
  return {};
}

std::string Session::file_of(const std::string& name, int version) const {
  return format("{}/{}-{}-{}.dat", words_.scratch, model_of(name), ranks_->rank(), version);
}

/// A free port at rank 0, which all learn; or what the configuration says, for ranks on several machines.
Result<std::string> Session::meeting_place() {
  if (ranks_->ranks() == 1) return std::string();
  if (!words_.meet.empty()) return words_.meet;
  std::string own = machine_name();
  if (ranks_->rank() == 0) {
    FRESHET_ASSIGN(const int port, free_port());
    own += format(" {}", port);
  }
  const std::vector<std::string> all = ranks_->gather(own);
  const std::string first = all.front().substr(0, all.front().find(' '));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == first) continue;
    return refuse(
        format("ranks are on {} and on {}: say meet = tcp://HOST:PORT, where rank 0 listens", first, all[rank]));
  }
  return format("tcp://127.0.0.1:{}", all.front().substr(first.size() + 1));
}

Result<std::unique_ptr<Checkpointer>> Session::open_checkpointer(const std::string& name, const Sizes& most) {
  Checkpointer::Options options{.model = model_of(name), .rank = ranks_->rank(), .ranks = ranks_->ranks()};
  FRESHET_ASSIGN(options.meet, meeting_place());
  options.host = words_.host;
  options.local = {words_.scratch};
  options.group = words_.group;
  if (!words_.persistent.empty()) {
    options.external = [place = words_.persistent]() -> Result<std::shared_ptr<Repository>> {
      FRESHET_ASSIGN(OpenedRepository opened, open_repository(place, RepositoryAccess::create));
      return std::shared_ptr<Repository>(std::move(opened));
    };
  }
  options.when_behind = levels::WhenBehind::wait;
  options.keep = words_.keep;
  options.limit_bytes_per_second = words_.limit_bytes_per_second;
  options.security = words_.security;
  std::vector<LaidTensor> tensors = {own_bytes("regions", kTableBytes)};
  for (const auto& [id, bytes] : most) {
    tensors.push_back(own_bytes(id == kFile ? "file" : format("region.{}", id), bytes));
  }
  names_.insert(name);
  return Checkpointer::open(std::move(options), std::move(tensors));
}

Status Session::close(const std::string& name) {
  const auto at = jobs_.find(name);
  if (at == jobs_.end()) return {};
  const Status finished = at->second.checkpointer->finish(words_.patience);
  jobs_.erase(at);
  if (last_ && last_->first == name) last_.reset();
  return finished;
}

Status Session::begin(const std::string& name, int version) {
  if (checkpoint_ || restart_) return fail(Code::failed_precondition, "a checkpoint or a restart has not ended");
  FRESHET_TRY(check(name, version));
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
  const auto named = regions_.find(checkpoint_->name);
  const auto& regions = named != regions_.end() ? named->second : regions_[""];
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
  if (!checkpoint_) return fail(Code::failed_precondition, "no checkpoint was begun");
  UnderWay ended = *std::move(checkpoint_);
  checkpoint_.reset();
  const std::string path = file_of(ended.name, ended.version);
  const auto check_own = [&]() -> Status {
    if (!success) return fail(Code::cancelled, "the program says that its checkpoint failed");
    std::error_code failure;
    const auto bytes = std::filesystem::file_size(path, failure);
    if (!failure) {
      std::vector<std::byte>& content = ended.held[kFile];
      content.resize(bytes);
      std::ifstream file(path, std::ios::binary);
      file.read(reinterpret_cast<char*>(content.data()), static_cast<std::streamsize>(bytes));
      if (!file) return fail(Code::io_error, format("cannot read {}", path));
    }
    if (ended.held.empty()) return fail(Code::failed_precondition, "nothing was captured, and no file written");
    if (ended.held.size() > kRegionsMax)
      return refuse(format("{} regions; {} at most", ended.held.size(), kRegionsMax));
    return {};
  };
  FRESHET_TRY(agree(check_own()));
  // What all have together.
  std::string own;
  for (const auto& [id, bytes] : ended.held) own += format("{} {} ", id, bytes.size());
  Sizes most;
  for (const std::string& one : ranks_->gather(own)) {
    std::istringstream list(one);
    std::int64_t id = 0;
    std::uint64_t bytes = 0;
    while (list >> id >> bytes) most[id] = std::max(most[id], bytes);
  }
  if (most.size() > kRegionsMax) return refuse(format("{} regions; {} at most", most.size(), kRegionsMax));
  Job* job = jobs_.contains(ended.name) ? &jobs_.at(ended.name) : nullptr;
  if (job == nullptr || job->most != most) {
    if (job != nullptr) FRESHET_TRY(agree(close(ended.name)));
    FRESHET_ASSIGN(auto opened, open_checkpointer(ended.name, most));
    std::vector<std::vector<std::byte>> unused(1, std::vector<std::byte>(kTableBytes));
    for (const auto& [id, bytes] : most) unused.emplace_back(bytes);
    const std::vector<MutableBytes> views(unused.begin(), unused.end());
    FRESHET_TRY(opened->restore(views, {.from_nothing = true, .version = {}}));
    job = &(jobs_[ended.name] = {std::move(opened), most});
  }
  std::vector<std::byte> table(kTableBytes);
  std::size_t word = 0;
  const auto put = [&](std::uint64_t value) { store_little_endian(table.data() + kWord * word++, value); };
  put(ranks_->ranks());
  put(most.size());
  std::vector<Bytes> views = {table};
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
  const auto captured = job->checkpointer->checkpoint(static_cast<std::uint64_t>(ended.version), views);
  FRESHET_TRY(agree(captured ? Status() : fail(captured.error())));
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  last_ = {ended.name, captured->version};
  return words_.sync ? wait() : Status();
}

Status Session::wait() {
  if (!last_) return {};
  const auto [name, version] = *last_;
  last_.reset();
  const Checkpointer& checkpointer = *jobs_.at(name).checkpointer;
  return checkpointer.wait(version, checkpointer.levels().back(), words_.patience);
}

Result<bool> Session::finished() const {
  if (!last_) return true;
  const Checkpointer& checkpointer = *jobs_.at(last_->first).checkpointer;
  return checkpointer.poll(last_->second, checkpointer.levels().back());
}

Status Session::checkpoint(const std::string& name, int version) {
  // What became of the checkpoint before is told, and does not cost this one.
  const Status before = wait();
  FRESHET_TRY(begin(name, version));
  const Status captured = capture(Selection::all, {});
  const Status ended = end(captured.has_value());
  if (!captured) return captured;
  if (!ended) return ended;
  if (!before) return fail(Error(before.error()).with_context("the checkpoint before, this one is made"));
  return {};
}

Result<std::optional<Session::Table>> Session::table_of(const std::string& name, std::uint64_t step_max) {
  FRESHET_TRY(agree(close(name)));
  std::vector<std::byte> bytes(kTableBytes);
  std::optional<Checkpointer::Restored> restored;
  {
    FRESHET_ASSIGN(const auto opened, open_checkpointer(name, {}));
    const std::vector<MutableBytes> views = {bytes};
    auto found = opened->restore(views, {.version = {}, .step_max = step_max});
    const bool is_none = !found && found.error().code() == Code::not_found;  // At all ranks.
    if (!found && !is_none) return fail(std::move(found).error());
    if (found) restored = *std::move(found);
    FRESHET_TRY(opened->finish(words_.patience));
  }
  if (!restored) return std::optional<Table>();
  const auto read = [&]() -> Result<Table> {
    if (!restored->fresh.empty()) {
      return fail(Code::failed_precondition, format("version {} is of fewer ranks", restored->step));
    }
    std::size_t word = 0;
    const auto next = [&] { return load_little_endian<std::uint64_t>(bytes.data() + kWord * word++); };
    const std::uint64_t ranks = next();
    if (ranks != ranks_->ranks()) {
      return fail(Code::failed_precondition, format("version {} is of {} ranks, here are {}: regions are of their rank",
                                                    restored->step, ranks, ranks_->ranks()));
    }
    const std::uint64_t count = next();
    if (count > kRegionsMax || restored->step > INT32_MAX)
      return fail(Code::corrupt, "a table of regions that cannot be");
    Table table{.version = static_cast<int>(restored->step), .most = {}, .own = {}};
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::int64_t>(next());
      table.most[id] = next();
      if (const std::uint64_t own = next(); own != kAbsent) {
        if (own > table.most[id]) return fail(Code::corrupt, "a table of regions that cannot be");
        table.own[id] = own;
      }
    }
    return table;
  };
  Result<Table> table = read();
  FRESHET_TRY(agree(table ? Status() : fail(table.error())));
  return std::optional(*std::move(table));
}

Result<std::optional<int>> Session::newest(const std::string& name, int version_max) {
  if (checkpoint_ || restart_) return fail(Code::failed_precondition, "a checkpoint or a restart has not ended");
  FRESHET_TRY(check(name, version_max));
  FRESHET_ASSIGN(const auto table,
                 table_of(name, version_max == 0 ? UINT64_MAX : static_cast<std::uint64_t>(version_max)));
  return table ? std::optional(table->version) : std::nullopt;
}

Status Session::restart_begin(const std::string& name, int version) {
  if (checkpoint_ || restart_) return fail(Code::failed_precondition, "a checkpoint or a restart has not ended");
  FRESHET_TRY(check(name, version));
  FRESHET_ASSIGN(const auto table, table_of(name, static_cast<std::uint64_t>(version)));
  if (!table || table->version != version)
    return fail(Code::not_found, format("{}: there is no version {}", name, version));
  FRESHET_ASSIGN(auto opened, open_checkpointer(name, table->most));
  std::vector<std::vector<std::byte>> buffers(1, std::vector<std::byte>(kTableBytes));
  for (const auto& [id, bytes] : table->most) buffers.emplace_back(bytes);
  const std::vector<MutableBytes> views(buffers.begin(), buffers.end());
  FRESHET_ASSIGN(const auto restored,
                 opened->restore(views, {.version = {}, .step_max = static_cast<std::uint64_t>(version)}));
  UnderWay begun{.name = name, .version = version, .held = {}};
  const auto take = [&]() -> Status {
    if (!restored || restored->step != static_cast<std::uint64_t>(version)) {
      return fail(Code::corrupt, format("version {} cannot be completed", version));
    }
    std::size_t at = 1;
    for (const auto& [id, bytes] : table->most) {
      std::vector<std::byte>& buffer = buffers[at++];
      const auto own = table->own.find(id);
      if (own == table->own.end()) continue;
      buffer.resize(own->second);
      begun.held[id] = std::move(buffer);
    }
    const auto file = begun.held.find(kFile);
    if (file == begun.held.end()) return {};
    const Bytes content = file->second;
    return write_file_atomically(system_env(), file_of(name, version), std::span(&content, 1), false);
  };
  FRESHET_TRY(agree(take()));
  jobs_[name] = {std::move(opened), table->most};
  restart_ = std::move(begun);
  return {};
}

Status Session::recover(Selection selection, const std::set<int>& ids) {
  if (!restart_) return fail(Code::failed_precondition, "no restart was begun");
  std::set<std::int64_t> all;
  for (const auto& [id, bytes] : restart_->held) {
    if (id != kFile) all.insert(id);
  }
  FRESHET_ASSIGN(const auto taken, chosen(selection, ids, all));
  const auto named = regions_.find(restart_->name);
  const auto& regions = named != regions_.end() ? named->second : regions_[""];
  for (const std::int64_t id : taken) {  // Everything is looked at before anything is filled.
    const std::vector<std::byte>& bytes = restart_->held.at(id);
    const auto region = regions.find(static_cast<int>(id));
    if (region == regions.end()) return refuse(format("region {} of the version is not protected here", id));
    if (region->second.bytes < bytes.size()) {
      return refuse(
          format("region {} has {} bytes here, and {} in the version", id, region->second.bytes, bytes.size()));
    }
  }
  for (const std::int64_t id : taken) {
    const std::vector<std::byte>& bytes = restart_->held.at(id);
    if (!bytes.empty()) std::memcpy(regions.at(static_cast<int>(id)).memory, bytes.data(), bytes.size());
  }
  return {};
}

std::optional<std::size_t> Session::recover_size(int id) const {
  if (!restart_ || !restart_->held.contains(id)) return std::nullopt;
  return restart_->held.at(id).size();
}

Status Session::restart_end() {
  if (!restart_) return fail(Code::failed_precondition, "no restart was begun");
  std::error_code ignored;
  std::filesystem::remove(file_of(restart_->name, restart_->version), ignored);
  restart_.reset();
  return {};
}

Result<std::string> Session::file() const {
  const auto& under_way = checkpoint_ ? checkpoint_ : restart_;
  if (!under_way) return fail(Code::failed_precondition, "no checkpoint and no restart was begun");
  return file_of(under_way->name, under_way->version);
}

Status Session::cleanup(const std::string& name) {
  FRESHET_TRY(check(name, 0));
  const Status closed = agree(close(name));
  std::error_code failure;
  std::filesystem::remove_all(format("{}/{}", words_.scratch, model_of(name)), failure);
  return closed;
}

Status Session::finalize(bool clean) {
  Status first;
  const std::set<std::string> names = names_;
  for (const std::string& name : names) {
    const Status closed = clean ? cleanup(name) : agree(close(name));
    if (first && !closed) first = closed;
  }
  return first;
}

}  // namespace freshet::veloc
