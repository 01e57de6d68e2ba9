// SPDX-License-Identifier: Apache-2.0
#include "bindings/veloc/veloc.h"

#include <cstdlib>
#include <exception>
#include <functional>
#include <numeric>

#include "bindings/veloc/region_table.h"
#include "bindings/veloc/session.h"
#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet::veloc {
namespace {

/// MPI's, for what is said seldom and is short.
class MpiRanks final : public Communicator {
 public:
  explicit MpiRanks(MPI_Comm given) {
    MPI_Comm_dup(given, &ranks_);
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
    int value = 0;
    MPI_Comm_rank(ranks_, &value);
    rank_ = static_cast<std::uint32_t>(value);
    MPI_Comm_size(ranks_, &value);
    count_ = static_cast<std::uint32_t>(value);
  }
  ~MpiRanks() override {
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended == 0) MPI_Comm_free(&ranks_);
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t ranks() const override { return count_; }
  std::vector<std::string> gather(const std::string& own) override {
    const int length = static_cast<int>(own.size());
    std::vector<int> lengths(count_);
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, ranks_);
    std::vector<int> offsets(count_);
    std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
    std::string all(static_cast<std::size_t>(offsets.back() + lengths.back()), '\0');
    MPI_Allgatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, ranks_);
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < count_; ++i) {
      parts.push_back(all.substr(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(lengths[i])));
    }
    return parts;
  }

  [[noreturn]] void end_job() override {
    MPI_Abort(ranks_, EXIT_FAILURE);
    std::_Exit(EXIT_FAILURE);
  }

 private:
  MPI_Comm ranks_ = MPI_COMM_NULL;
  std::uint32_t rank_ = 0;
  std::uint32_t count_ = 1;
};

std::unique_ptr<Session>& session() {
  // Not destroyed when the program ends: its threads may still work then.
  static auto* const one = new std::unique_ptr<Session>();
  return *one;
}

bool is_mpi_there() {
  int begun = 0;
  int ended = 0;
  return MPI_Initialized(&begun) == MPI_SUCCESS && MPI_Finalized(&ended) == MPI_SUCCESS && begun != 0 && ended == 0;
}

bool& is_alone() {
  static bool alone = false;
  return alone;
}

int failed(const char* what, const std::string& why) {
  log_line(LogLevel::warning, format("{}: {}", what, why));
  return VELOC_FAILURE;
}

/// Nothing that happens inside of a call ends the program.
int guarded(const char* what, const std::function<int()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return failed(what, error.what());
  }
}

int with_session(const char* what, const std::function<int(Session&)>& work) {
  return guarded(what, [&] {
    if (session() == nullptr) return failed(what, "VELOC_Init() comes first");
    return work(*session());
  });
}

int done(const char* what, const Status& status) {
  return status ? VELOC_SUCCESS : failed(what, status.error().message());
}

int call(const char* what, const std::function<Status(Session&)>& work) {
  return with_session(what, [&](Session& open) { return done(what, work(open)); });
}

int open_session(const char* what, std::unique_ptr<Communicator> ranks, const char* cfg_file, std::string suffix) {
  if (session() != nullptr) return failed(what, "it was called before");
  const std::uint32_t rank = ranks->rank();
  auto config = read_config(system_env(), cfg_file == nullptr ? "" : cfg_file, rank);
  // A rank that cannot read its configuration says so to the others, which wait for it.
  std::string bad;
  for (const std::string& one : ranks->gather(config ? "" : config.error().message())) bad = bad.empty() ? one : bad;
  if (!config || !bad.empty()) return failed(what, config ? bad : config.error().message());
  if (rank == 0 && !config->without_effect.empty()) {
    std::string list;
    for (const std::string& word : config->without_effect) list += (list.empty() ? "" : ", ") + word;
    log_line(LogLevel::info, format("{}: without effect: {}", what, list));
  }
  auto opened = Session::open(std::move(ranks), *std::move(config), std::move(suffix));
  if (!opened) return failed(what, opened.error().message());
  session() = *std::move(opened);
  return VELOC_SUCCESS;
}

Result<Selection> selection_of(int mode) {
  if (mode < VELOC_CKPT_ALL || mode > VELOC_CKPT_REST) return refuse(format("mode {}: ALL, SOME or REST", mode));
  return static_cast<Selection>(mode);
}

std::set<int> ids_of(int mode, const int* ids, int count) {
  if (mode == VELOC_CKPT_ALL || ids == nullptr || count <= 0) return {};
  return {ids, ids + count};
}

std::string text_of(const char* name) { return name == nullptr ? "" : name; }

}  // namespace
}  // namespace freshet::veloc

using freshet::veloc::call;
using freshet::veloc::failed;
using freshet::veloc::open_session;
using freshet::veloc::Session;
using freshet::veloc::text_of;
using freshet::veloc::with_session;

extern "C" {

int VELOC_Init(MPI_Comm comm, const char* cfg_file) {
  return freshet::veloc::guarded("VELOC_Init", [&] {
    if (!freshet::veloc::is_mpi_there()) return failed("VELOC_Init", "MPI_Init() comes first");
    return open_session("VELOC_Init", std::make_unique<freshet::veloc::MpiRanks>(comm), cfg_file, "");
  });
}

int VELOC_Init_single(unsigned int id, const char* cfg_file) {
  return freshet::veloc::guarded("VELOC_Init_single", [&] {
    freshet::veloc::is_alone() = true;
    return open_session("VELOC_Init_single", std::make_unique<freshet::veloc::Alone>(), cfg_file,
                        freshet::format(".p{}", id));
  });
}

int VELOC_Finalize(int cleanup) {
  if (!freshet::veloc::is_mpi_there() && freshet::veloc::session() != nullptr && !freshet::veloc::is_alone()) {
    return failed("VELOC_Finalize", "MPI_Finalize() comes after it");
  }
  const int ended = call("VELOC_Finalize", [&](Session& open) { return open.finalize(cleanup != 0); });
  freshet::veloc::session().reset();
  return ended;
}

int VELOC_Mem_protect(int id, void* ptr, size_t count, size_t base_size) {
  return VELOC_Region_protect(id, ptr, count, base_size, "");
}

int VELOC_Region_protect(int id, void* ptr, size_t count, size_t base_size, const char* name) {
  return call("VELOC_Mem_protect", [&](Session& open) -> freshet::Status {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, base_size, &bytes)) return freshet::refuse("the region is too large");
    if (ptr == nullptr && bytes > 0) return freshet::refuse(freshet::format("region {}: no memory was given", id));
    open.protect(id, ptr, bytes, text_of(name));
    return {};
  });
}

int VELOC_Mem_unprotect(int id) { return VELOC_Region_unprotect(id, ""); }

int VELOC_Region_unprotect(int id, const char* name) {
  return call("VELOC_Mem_unprotect", [&](Session& open) -> freshet::Status {
    if (open.unprotect(id, text_of(name))) return {};
    return freshet::refuse(freshet::format("region {} is not protected", id));
  });
}

int VELOC_Mem_clear(void) { return VELOC_Region_clear(""); }

int VELOC_Region_clear(const char* name) {
  return call("VELOC_Mem_clear", [&](Session& open) -> freshet::Status {
    open.clear(text_of(name));
    return {};
  });
}

int VELOC_Route_file(const char* /*original*/, char* routed) {
  return call("VELOC_Route_file", [&](Session& open) -> freshet::Status {
    FRESHET_ASSIGN(const std::string path, open.file());
    if (routed == nullptr || path.size() >= VELOC_MAX_NAME) return freshet::refuse("there is no room for the path");
    memcpy(routed, path.c_str(), path.size() + 1);
    return {};
  });
}

int VELOC_Cleanup(const char* name) {
  return call("VELOC_Cleanup", [&](Session& open) { return open.cleanup(text_of(name)); });
}

int VELOC_Checkpoint_begin(const char* name, int version) {
  return call("VELOC_Checkpoint_begin", [&](Session& open) { return open.begin(text_of(name), version); });
}

int VELOC_Checkpoint_selective(int mode, int* ids, int id_count) {
  return call("VELOC_Checkpoint_selective", [&](Session& open) -> freshet::Status {
    FRESHET_ASSIGN(const auto selection, freshet::veloc::selection_of(mode));
    return open.capture(selection, freshet::veloc::ids_of(mode, ids, id_count));
  });
}

int VELOC_Checkpoint_mem(void) { return VELOC_Checkpoint_selective(VELOC_CKPT_ALL, nullptr, 0); }

int VELOC_Checkpoint_end(int success) {
  return call("VELOC_Checkpoint_end", [&](Session& open) { return open.end(success != 0); });
}

int VELOC_Checkpoint_wait(void) {
  return call("VELOC_Checkpoint_wait", [](Session& open) { return open.wait(); });
}

int VELOC_Checkpoint_finished(void) {
  return with_session("VELOC_Checkpoint_finished", [](Session& open) {
    const auto finished = open.finished();
    if (!finished) return failed("VELOC_Checkpoint_finished", finished.error().message());
    return *finished ? 1 : 0;
  });
}

int VELOC_Checkpoint(const char* name, int version) {
  return call("VELOC_Checkpoint", [&](Session& open) { return open.checkpoint(text_of(name), version); });
}

int VELOC_Restart_test(const char* name, int version) {
  return with_session("VELOC_Restart_test", [&](Session& open) {
    const auto newest = open.newest(text_of(name), version);
    if (newest) return newest->value_or(VELOC_FAILURE);
    // Below a version that the program names, what is damaged may never have been finished.
    const bool is_damage = newest.error().code() == freshet::Code::corrupt;
    if (!freshet::veloc::is_unknown(newest.error()) || (is_damage && version != 0)) return failed("VELOC_Restart_test", newest.error().message());
    // A program takes VELOC_FAILURE for "there is none", and would begin at step 0.
    failed("VELOC_Restart_test",
           freshet::format("{}; whether there is a version cannot be known, so the job ends", newest.error().message()));
    open.end_job();
  });
}

int VELOC_Restart_begin(const char* name, int version) {
  return call("VELOC_Restart_begin", [&](Session& open) { return open.restart_begin(text_of(name), version); });
}

int VELOC_Recover_selective(int mode, int* ids, int id_count) {
  return call("VELOC_Recover_selective", [&](Session& open) -> freshet::Status {
    FRESHET_ASSIGN(const auto selection, freshet::veloc::selection_of(mode));
    return open.recover(selection, freshet::veloc::ids_of(mode, ids, id_count));
  });
}

int VELOC_Recover_size(int id) {
  return with_session("VELOC_Recover_size", [&](Session& open) {
    const auto size = open.recover_size(id);
    return size && *size <= INT32_MAX ? static_cast<int>(*size) : -1;
  });
}

int VELOC_Recover_mem(void) { return VELOC_Recover_selective(VELOC_RECOVER_ALL, nullptr, 0); }

int VELOC_Restart_end(int /*success*/) {
  return call("VELOC_Restart_end", [](Session& open) { return open.restart_end(); });
}

int VELOC_Restart(const char* name, int version) {
  const int begun = VELOC_Restart_begin(name, version);
  if (begun != VELOC_SUCCESS) return begun;
  const int recovered = VELOC_Recover_mem();
  const int ended = VELOC_Restart_end(1);
  return recovered != VELOC_SUCCESS ? recovered : ended;
}

}  // extern "C"
