// SPDX-License-Identifier: Apache-2.0
#include "transport/directory/host_claim.h"

#include <fcntl.h>
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

}  // namespace

Result<std::unique_ptr<Directory::Claim>> HostClaim::take(std::shared_ptr<const FileDescriptor> folder,
                                                          const std::string& model, FileDescriptor kept) {
  const std::string name = model + ".lock";
  // Children let go of it before it is locked: a lock lasts as long as anybody has the file open.
  FRESHET_ASSIGN(ParentsDescriptor lock,
                 host_files::open_file(folder->get(), name, O_RDWR | O_CREAT).map([](FileDescriptor file) {
                   return ParentsDescriptor(std::move(file));
                 }));
  FRESHET_ASSIGN(const bool taken, host_files::try_lock(lock.get(), name));
  if (!taken) {
    return fail(Code::already_exists,
                format("{} is already published on this host, by {}", model, holder_of(lock.get(), name)));
  }
  const std::string pid = format("{}\n", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0) return fail_errno(errno, "truncate " + name);
  FRESHET_TRY(host_files::write_whole(lock.get(), pid.data(), pid.size(), name));
  FRESHET_ASSIGN(FileDescriptor opened, host_files::open_file(folder->get(), model + ".number", O_RDWR | O_CREAT));
  ParentsDescriptor numbers(std::move(opened));
  FRESHET_ASSIGN(host_files::NumberRecord record, host_files::read_numbers(numbers.get(), model + ".number"));
  if (kept) {
    FRESHET_ASSIGN(const host_files::NumberRecord known, host_files::read_numbers(kept.get(), model + ".number"));
    record = {.number = std::max(record.number, known.number),
              .incarnation = std::max(record.incarnation, known.incarnation)};
  }
  return std::unique_ptr<Directory::Claim>(
      new HostClaim(std::move(folder), model, std::move(lock), std::move(numbers),
                    ParentsDescriptor(std::move(kept)), record));
}

HostClaim::~HostClaim() {
  // The entry goes first: whoever sees the lock free finds no entry to follow.
  if (advertised_ && !mark_.is_inherited())
    ::unlinkat(folder_->get(), (model_ + std::string(host_files::kEntrySuffix)).c_str(), 0);
}

Result<std::uint64_t> HostClaim::begin_incarnation(std::int64_t unix_ns) {
  const std::uint64_t next = std::max<std::uint64_t>(record_.incarnation + 1, unix_ns > 0 ? unix_ns : 0);
  FRESHET_TRY(write_record({.number = record_.number, .incarnation = next}));
  return next;
}

Status HostClaim::record_number(VersionNumber number) {
  return write_record({.number = number, .incarnation = record_.incarnation});
}

Status HostClaim::write_record(host_files::NumberRecord record) {
  FRESHET_TRY(host_files::write_numbers(numbers_.get(), record, model_ + ".number"));
  record_ = record;
  if (!kept_) return {};
  const Status kept = host_files::write_numbers(kept_.get(), record, model_ + ".number");
  if (!kept && !told_unkept_) host_files::tell_unkept(model_, kept.error());
  told_unkept_ = !kept;
  return {};
}

Status HostClaim::advertise(const Directory::Entry& entry) {
  FRESHET_TRY(check_entry(entry, Code::invalid_argument));
  FRESHET_TRY(host_files::replace(folder_->get(), model_ + std::string(host_files::kEntrySuffix), entry_json(entry)));
  advertised_ = true;
  return {};
}

CurrentVersion HostClaim::current() const {
  return host_files::read_current(folder_->get(), model_).value_or(CurrentVersion{});
}

void HostClaim::swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) {
  done(host_files::swap_current(folder_->get(), model_, expected, desired));
}

}  // namespace freshet
