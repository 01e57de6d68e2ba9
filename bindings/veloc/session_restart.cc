// SPDX-License-Identifier: Apache-2.0
/// How a Session finds a version, and gives its regions back.

#include <cstring>
#include <filesystem>
#include <utility>

#include "bindings/veloc/region_table.h"
#include "bindings/veloc/session.h"
#include "core/base/bytes.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet::veloc {

Result<Session::Table> Session::table_from(Bytes bytes, const Checkpointer::Restored& restored) const {
  if (!restored.fresh.empty()) {
    return fail(Code::failed_precondition,
                format("version {} was written by fewer ranks: start the job with as many", restored.step));
  }
  std::size_t word = 0;
  const auto next = [&] { return load_little_endian<std::uint64_t>(bytes.data() + kWord * word++); };
  const std::uint64_t ranks = next();
  if (ranks != ranks_->ranks()) {
    return fail(Code::failed_precondition,
                format("version {} was written by {} ranks, and this job has {}: start it with as many", restored.step,
                       ranks, ranks_->ranks()));
  }
  const std::uint64_t count = next();
  if (count > kRegionsMax || restored.step > INT32_MAX) return fail(Code::corrupt, "the table of regions is damaged");
  Table table{.version = static_cast<int>(restored.step), .regions = count, .most = {}, .own = {}};
  if (bytes.size() < kTableBytes + more_bytes(count)) return table;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int64_t>(next());
    table.most[id] = next();
    if (const std::uint64_t own = next(); own != kAbsent) {
      if (own > table.most[id]) return fail(Code::corrupt, "the table of regions is damaged");
      table.own[id] = own;
    }
  }
  return table;
}

Result<std::optional<Session::Table>> Session::read_table(const std::string& name, std::size_t regions,
                                                          std::uint64_t step_min, std::uint64_t step_max) {
  std::optional<Table> table;
  const Status read = caught([&]() -> Status {
    FRESHET_ASSIGN(const auto opened, open_checkpointer(name, regions, {}));
    std::vector<std::vector<std::byte>> buffers = buffers_for(regions, {});
    const std::vector<MutableBytes> views(buffers.begin(), buffers.end());
    const auto found = opened->restore(views, {.version = {}, .step_min = step_min, .step_max = step_max});
    const bool is_none = !found && found.error().code() == Code::not_found;  // At all ranks.
    if (!found && !is_none) return fail(found.error());
    FRESHET_TRY(opened->finish(config_.patience));
    if (is_none || !*found) return {};
    FRESHET_ASSIGN(table, table_from(take_table(buffers, regions), **found));
    return {};
  });
  FRESHET_TRY(agree(format("table {} {}", name, regions), read));
  return table;
}

Result<std::optional<Session::Table>> Session::table_of(const std::string& name, std::uint64_t step_min,
                                                        std::uint64_t step_max) {
  FRESHET_TRY(close(name));
  FRESHET_ASSIGN(auto table, read_table(name, 0, step_min, step_max));
  if (!table || more_bytes(table->regions) == 0) return table;
  const auto step = static_cast<std::uint64_t>(table->version);
  return read_table(name, table->regions, step, step);
}

Status Session::load(const std::string& name, const Table& table) {
  UnderWay loaded{.name = name, .version = table.version, .held = {}};
  Job job{.checkpointer = nullptr, .most = table.most};
  const Status read = caught([&]() -> Status {
    FRESHET_ASSIGN(job.checkpointer, open_checkpointer(name, table.regions, table.most));
    std::vector<std::vector<std::byte>> buffers = buffers_for(table.regions, table.most);
    const std::vector<MutableBytes> views(buffers.begin(), buffers.end());
    const auto step = static_cast<std::uint64_t>(table.version);
    FRESHET_ASSIGN(const auto restored,
                   job.checkpointer->restore(views, {.version = {}, .step_min = step, .step_max = step}));
    if (!restored) return fail(Code::not_found, format("version {} is gone", step));
    FRESHET_ASSIGN(const Table again, table_from(take_table(buffers, table.regions), *restored));
    if (again.most != table.most || again.own != table.own) {
      return fail(Code::corrupt, format("version {} is there twice, with other regions", step));
    }
    std::size_t at = 0;
    for (const auto& [id, bytes] : table.most) {
      std::vector<std::byte>& buffer = buffers[at++];
      const auto own = table.own.find(id);
      if (own == table.own.end()) continue;
      buffer.resize(own->second);
      loaded.held[id] = std::move(buffer);
    }
    return {};
  });
  FRESHET_TRY(agree(format("load {} {}", name, table.version), read));
  jobs_[name] = std::move(job);
  loaded_ = std::move(loaded);
  return {};
}

Result<std::optional<int>> Session::newest(const std::string& name, int version_max) {
  const auto may = [&]() -> Status {
    if (checkpoint_ || restart_)
      return fail(Code::failed_precondition, "a checkpoint or a restart is still open: end it first");
    return check(name, version_max);
  };
  FRESHET_TRY(agree(format("newest {} {}", name, version_max), may()));
  loaded_.reset();
  // A version counts when every byte of it was read; else an older one.
  std::optional<Error> damaged;
  auto step_max = version_max == 0 ? UINT64_MAX : static_cast<std::uint64_t>(version_max);
  for (;;) {
    FRESHET_ASSIGN(const auto table, table_of(name, 0, step_max));
    if (!table) return damaged ? Result<std::optional<int>>(fail(*damaged)) : std::optional<int>();
    const Status loaded = load(name, *table);
    if (loaded) return std::optional(table->version);
    // What cannot be read now may be whole.
    if (table->version == 0 || (is_unknown(loaded.error()) && loaded.error().code() != Code::corrupt)) {
      return fail(loaded.error());
    }
    if (!damaged) damaged = loaded.error();
    log_line(LogLevel::warning, format("{}: {}", name, loaded.error().message()));
    step_max = static_cast<std::uint64_t>(table->version) - 1;
  }
}

Status Session::restart_begin(const std::string& name, int version) {
  const auto may = [&]() -> Status {
    if (checkpoint_ || restart_)
      return fail(Code::failed_precondition, "a checkpoint or a restart is still open: end it first");
    return check(name, version);
  };
  FRESHET_TRY(agree(format("restart {} {}", name, version), may()));
  const bool is_loaded = loaded_ && loaded_->name == name && loaded_->version == version;  // By all, or by nobody.
  if (!is_loaded) {
    loaded_.reset();
    const auto step = static_cast<std::uint64_t>(version);
    FRESHET_ASSIGN(const auto table, table_of(name, step, step));
    if (!table) return fail(Code::not_found, format("{}: there is no version {}", name, version));
    FRESHET_TRY(load(name, *table));
  }
  const Status written = caught([&]() -> Status {
    const auto file = loaded_->held.find(kFile);
    if (file == loaded_->held.end()) return {};
    const Bytes content = file->second;
    return write_file_atomically(system_env(), file_of(name, version), std::span(&content, 1), false);
  });
  FRESHET_TRY(agree(format("restarted {} {}", name, version), written));
  restart_ = std::exchange(loaded_, {});
  return {};
}

Status Session::recover(Selection selection, const std::set<int>& ids) {
  if (!restart_) return fail(Code::failed_precondition, "no restart was begun");
  std::set<std::int64_t> all;
  for (const auto& [id, bytes] : restart_->held) {
    if (id != kFile) all.insert(id);
  }
  FRESHET_ASSIGN(const auto taken, chosen(selection, ids, all));
  const auto& regions = regions_of(restart_->name);
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

}  // namespace freshet::veloc
