// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_claim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/format.h"
#include "transport/directory/entry_json.h"

namespace freshet {
namespace {

std::string holder_of(int lock_file, const std::string& name) {
  auto text = host_files::read_file(lock_file, 32, name);
  if (!text || text->empty() || text->find_first_not_of("0123456789\n") != std::string::npos) return "another process";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return "process " + *text;
}

/// Whether the open file is the one of that name.
bool is_named(int folder, const std::string& name, int file) {
  struct stat named {};
  struct stat open {};
  return ::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(file, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

Result<FileDescriptor> duplicate(int file) {
  FileDescriptor copy(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!copy) return fail_errno(errno, "duplicate a descriptor");
  return copy;
}

bool is_there(int folder, const std::string& name) { return ::faccessat(folder, name.c_str(), F_OK, 0) == 0; }

host_files::NumberRecord later(const host_files::NumberRecord& a, const host_files::NumberRecord& b) {
  return {.number = std::max(a.number, b.number), .incarnation = std::max(a.incarnation, b.incarnation)};
}

}  // namespace

Result<std::shared_ptr<const HostClaim::Held>> HostClaim::hold(HostFolder::Descriptor descriptor,
                                                               const std::string& folder, const std::string& model) {
  const std::string path = format("{}/{}.lock", folder, model);
  // Children let go of it before it is locked: a lock lasts as long as anybody has the file open.
  FRESHET_ASSIGN(
      ParentsDescriptor lock,
      host_files::open_file(descriptor->get(), model + ".lock", O_RDWR | O_CREAT, path).map([](FileDescriptor file) {
        return ParentsDescriptor(std::move(file));
      }));
  FRESHET_ASSIGN(const bool taken, host_files::try_lock(lock.get(), path));
  if (!taken) {
    return fail(Code::already_exists,
                format("{} is already published on this host, by {}", model, holder_of(lock.get(), path)));
  }
  const std::string pid = format("{}\n", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0) return fail_errno(errno, "truncate " + path);
  FRESHET_TRY(host_files::write_whole(lock.get(), pid.data(), pid.size(), path));
  FRESHET_ASSIGN(FileDescriptor numbers, host_files::open_file(descriptor->get(), model + ".number", O_RDWR | O_CREAT,
                                                               format("{}/{}.number", folder, model)));
  return std::make_shared<const Held>(
      Held{.folder = std::move(descriptor), .lock = std::move(lock), .numbers = ParentsDescriptor(std::move(numbers))});
}

Result<std::unique_ptr<Directory::Claim>> HostClaim::take(std::shared_ptr<HostFolder> folder, const std::string& model,
                                                          host_files::KeptNumbers kept) {
  FRESHET_ASSIGN(std::shared_ptr<const Held> held, hold(folder->descriptor(), folder->path(), model));
  FRESHET_ASSIGN(host_files::NumberRecord record,
                 host_files::read_numbers(held->numbers.get(), format("{}/{}.number", folder->path(), model)));
  if (kept.file) {
    const auto known = host_files::read_numbers(kept.file.get(), kept.path);
    if (known) record = later(record, *known);
    if (!known) host_files::tell_unkept(model, known.error());
  }
  return std::unique_ptr<Directory::Claim>(
      new HostClaim(std::move(folder), model, std::move(held), std::move(kept), record));
}

HostClaim::~HostClaim() {
  const MutexLock lock(mutex_);
  // The entry goes first: whoever sees the lock free finds no entry to follow.
  const bool is_ours = !entry_.empty() && lost_to_.empty() && !mark_.is_inherited();
  if (is_ours) ::unlinkat(held_->folder->get(), entry_file().c_str(), 0);
}

std::shared_ptr<const HostClaim::Held> HostClaim::held() const {
  const MutexLock lock(mutex_);
  return held_;
}

host_files::NumberRecord HostClaim::record() const {
  const MutexLock lock(mutex_);
  return record_;
}

Status HostClaim::standing() const {
  const MutexLock lock(mutex_);
  if (lost_to_.empty()) return {};
  return fail(Code::failed_precondition, lost_to_);
}

Result<std::uint64_t> HostClaim::begin_incarnation(std::int64_t unix_ns) {
  FRESHET_TRY(standing());
  host_files::NumberRecord record = this->record();
  record.incarnation = std::max<std::uint64_t>(record.incarnation + 1, unix_ns > 0 ? unix_ns : 0);
  FRESHET_TRY(write_record(record));
  return record.incarnation;
}

Status HostClaim::record_number(VersionNumber number) {
  FRESHET_TRY(standing());
  return write_record({.number = number, .incarnation = record().incarnation});
}

/// Hosts that share a home folder may share this file: a number that another host has given is not written over.
Status HostClaim::keep(const host_files::NumberRecord& record) const {
  FRESHET_ASSIGN(const host_files::NumberRecord known, host_files::read_numbers(kept_.get(), kept_path_));
  return host_files::write_numbers(kept_.get(), later(record, known), kept_path_);
}

Status HostClaim::write_record(host_files::NumberRecord record) {
  FRESHET_TRY(host_files::write_numbers(held()->numbers.get(), record, numbers_path()));
  const Status kept = kept_ ? keep(record) : Status();
  bool tells = false;
  {
    const MutexLock lock(mutex_);
    record_ = record;
    tells = !kept && !told_unkept_;
    told_unkept_ = !kept;
  }
  if (tells) host_files::tell_unkept(model_, kept.error());
  return {};
}

Status HostClaim::advertise(const Directory::Entry& entry) {
  FRESHET_TRY(standing());
  FRESHET_TRY(check_entry(entry, Code::invalid_argument));
  std::string text = entry_json(entry);
  const Status replaced = host_files::replace(held()->folder->get(), entry_file(), text);
  if (!replaced) return fail(Error(replaced.error()).with_context(folder_->path()));
  const MutexLock lock(mutex_);
  entry_ = std::move(text);
  return {};
}

bool HostClaim::is_in_place(const Held& held) const {
  const int folder = held.folder->get();
  if (held.folder != folder_->descriptor() || !is_named(folder, model_ + ".lock", held.lock.get())) return false;
  if (!is_named(folder, model_ + ".number", held.numbers.get())) return false;
  bool has_entry = false;
  bool has_current = false;
  {
    const MutexLock lock(mutex_);
    has_entry = !entry_.empty();
    has_current = current_ != CurrentVersion{};
  }
  return (!has_entry || is_there(folder, entry_file())) &&
         (!has_current || is_there(folder, model_ + std::string(host_files::kCurrentSuffix)));
}

Result<bool> HostClaim::tend() {
  FRESHET_TRY(standing());
  if (mark_.is_inherited() || is_in_place(*held())) return false;
  const Status again = take_again();
  if (again) return true;
  if (again.error().code() != Code::already_exists) return fail(Error(again.error()));
  const MutexLock lock(mutex_);
  lost_to_ = format("the run folder was removed, and {}; this publisher stops", again.error().message());
  return fail(Code::failed_precondition, lost_to_);
}

/// The lock, the numbers, what is current and the entry, in this order: whoever finds the entry finds the rest.
Status HostClaim::take_again() {
  const HostFolder::Descriptor folder = folder_->descriptor();
  std::shared_ptr<const Held> held = this->held();
  const bool is_locked = held->folder == folder && is_named(folder->get(), model_ + ".lock", held->lock.get());
  const bool is_whole = is_locked && is_named(folder->get(), model_ + ".number", held->numbers.get());
  if (is_locked && !is_whole) {
    // A second lock would be refused: this claim has it.
    FRESHET_ASSIGN(FileDescriptor lock, duplicate(held->lock.get()));
    FRESHET_ASSIGN(FileDescriptor numbers,
                   host_files::open_file(folder->get(), model_ + ".number", O_RDWR | O_CREAT, numbers_path()));
    held = std::make_shared<const Held>(Held{.folder = folder,
                                             .lock = ParentsDescriptor(std::move(lock)),
                                             .numbers = ParentsDescriptor(std::move(numbers))});
  } else if (!is_locked) {
    FRESHET_ASSIGN(held, hold(folder, folder_->path(), model_));
  }
  FRESHET_ASSIGN(const host_files::NumberRecord there, host_files::read_numbers(held->numbers.get(), numbers_path()));
  host_files::NumberRecord record;
  CurrentVersion current;
  std::string entry;
  {
    const MutexLock lock(mutex_);
    // This publisher would give the same numbers once more.
    if (there.number > record_.number) {
      return fail(Code::already_exists,
                  format("another publisher has published up to {}@{} meanwhile", model_, there.number));
    }
    held_ = held;
    record = record_ = later(record_, there);
    current = current_;
    entry = entry_;
  }
  FRESHET_TRY(host_files::write_numbers(held->numbers.get(), record, numbers_path()));
  FRESHET_ASSIGN(const CurrentVersion known, host_files::read_current(folder->get(), model_));
  if (current.comes_after(known.epoch, known.version)) {
    FRESHET_TRY(host_files::swap_current(folder->get(), model_, known, current));
  }
  if (entry.empty()) return {};
  return host_files::replace(folder->get(), entry_file(), entry);
}

CurrentVersion HostClaim::current() const {
  const auto record = host_files::read_current(held()->folder->get(), model_);
  const MutexLock lock(mutex_);
  // What was seen is put back, should the file be removed.
  if (record && record->comes_after(current_.epoch, current_.version)) current_ = *record;
  return record && *record != CurrentVersion{} ? *record : current_;
}

void HostClaim::swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) {
  auto swapped = host_files::swap_current(held()->folder->get(), model_, expected, desired);
  if (swapped) {
    const MutexLock lock(mutex_);
    if (swapped->comes_after(current_.epoch, current_.version)) current_ = *swapped;
  }
  done(std::move(swapped));
}

}  // namespace freshet
