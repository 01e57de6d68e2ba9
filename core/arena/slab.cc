// SPDX-License-Identifier: Apache-2.0
#include "core/arena/slab.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "core/arena/arena.h"
#include "core/base/check.h"
#include "core/base/format.h"
#include "core/host/memory_room.h"

namespace freshet {
namespace {

constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kSlabBytesMax = std::uint64_t{1} << 46;  // More than a process can map of anything else.

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

ParentsDescriptor make_memory(const std::string& name, unsigned flags) {
  return ParentsDescriptor(FileDescriptor(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags)));
}

/// Sizes the memory and makes the kernel allocate all of it, so that no later access can find it missing (SIGBUS).
Status allocate(int descriptor, std::uint64_t bytes) {
  if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return fail_errno(errno, "size the slab");
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (error != 0) return fail_errno(error, format("allocate {} bytes of shared memory", bytes));
  return {};
}

/// Locks as long a beginning of the memory as the limits allow; returns its length.
std::uint64_t lock_prefix(void* memory, std::uint64_t bytes) {
  std::uint64_t length = bytes;
  if (::mlock(memory, length) == 0) return length;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) length = std::min<std::uint64_t>(length, limit.rlim_cur);
  // What is locked elsewhere in the process counts against the limit too, so the rest is found by halving.
  for (length = length / page_bytes() * page_bytes(); length > 0; length = length / 2 / page_bytes() * page_bytes()) {
    if (::mlock(memory, length) == 0) return length;
  }
  return 0;
}

}  // namespace

Result<Slab> Slab::create(const std::string& name, const Options& options) {
  if (options.bytes == 0 || options.bytes > kSlabBytesMax) {
    return fail(Code::invalid_argument, format("create slab {}: a slab cannot have {} bytes", name, options.bytes));
  }
  const auto context = [&](tl::unexpected<Error> error) {
    return fail(std::move(error.value()).with_context(format("create slab {}", name)));
  };
  if (options.device != nullptr) {
    auto slab = create_on(*options.device, options.bytes);
    return slab ? std::move(slab) : context(fail(std::move(slab.error())));
  }
  Slab slab;
  if (options.huge_pages) {
    const std::uint64_t bytes = round_up(options.bytes, kHugePageBytes);
    slab.descriptor_ = make_memory(name, MFD_HUGETLB | MFD_HUGE_2MB);
    slab.huge_pages_ = slab.descriptor_ && allocate(slab.descriptor_.get(), bytes).has_value();
    slab.bytes_ = bytes;
    if (!slab.huge_pages_) slab = Slab();
  }
  if (!slab.huge_pages_) {
    slab.bytes_ = round_up(options.bytes, page_bytes());
    if (auto status = check_memory_room(slab.bytes_); !status) return context(fail(status.error()));
    slab.descriptor_ = make_memory(name, 0);
    if (!slab.descriptor_) return context(fail_errno(errno, "memfd_create"));
    if (auto status = allocate(slab.descriptor_.get(), slab.bytes_); !status) return context(fail(status.error()));
  }
  void* const mapping =
      ::mmap(nullptr, slab.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, slab.descriptor_.get(), 0);
  if (mapping == MAP_FAILED) return context(fail_errno(errno, "mmap"));
  slab.mapping_ = mapping;
  slab.writable_ = true;
  // A child would keep the memory of a creator that died.
  if (::madvise(mapping, slab.bytes_, MADV_DONTFORK) != 0) return context(fail_errno(errno, "keep it from children"));
  if (options.lock) slab.locked_bytes_ = lock_prefix(mapping, slab.bytes_);
  // After the mapping: this seal leaves the mappings that exist writable and forbids new ones.
  if (::fcntl(slab.descriptor_.get(), F_ADD_SEALS, kSeals) != 0) return context(fail_errno(errno, "seal"));
  return slab;
}

Result<Slab> Slab::adopt(int descriptor, std::uint64_t bytes) {
  Slab slab;
  slab.descriptor_ = ParentsDescriptor(FileDescriptor(descriptor));
  if (bytes == 0 || bytes > kSlabBytesMax) {
    return fail(Code::corrupt, format("adopt slab: a slab cannot have {} bytes", bytes));
  }
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return fail(Code::corrupt, "adopt slab: not sealable shared memory");
  const bool unwritable = (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) != 0;
  if (!unwritable || (seals & F_SEAL_GROW) == 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_SEAL) == 0) {
    return fail(Code::corrupt, format("adopt slab: seals {:#x} are not those of a slab", seals));
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return fail_errno(errno, "adopt slab: fstat");
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) != bytes) {
    return fail(Code::corrupt, format("adopt slab: {} bytes promised, {} there", bytes, status.st_size));
  }
  // A hole would be memory that the first reader allocates, or dies of.
  if (static_cast<std::uint64_t>(status.st_blocks) * 512 < bytes) {
    return fail(Code::corrupt, format("adopt slab: only {} of {} bytes are allocated", status.st_blocks * 512, bytes));
  }
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (mapping == MAP_FAILED) return fail_errno(errno, "adopt slab: mmap");
  slab.mapping_ = mapping;
  slab.bytes_ = bytes;
  return slab;
}

Result<Slab> Slab::create_on(gpu::Device& device, std::uint64_t bytes) {
  Slab slab;
  FRESHET_ASSIGN(slab.on_device_, device.allocate(bytes));
  FRESHET_ASSIGN(FileDescriptor descriptor, device.export_slab(slab.on_device_));
  slab.descriptor_ = ParentsDescriptor(std::move(descriptor));
  slab.mapping_ = slab.on_device_.address();
  slab.bytes_ = slab.on_device_.bytes();
  slab.writable_ = true;
  return slab;
}

Result<Slab> Slab::import(gpu::Device& device, FileDescriptor descriptor, std::uint64_t bytes) {
  Slab slab;
  FRESHET_ASSIGN(slab.on_device_, device.import_slab(std::move(descriptor), bytes));
  slab.mapping_ = slab.on_device_.address();
  slab.bytes_ = bytes;
  return slab;
}

Slab::Slab(Slab&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      mark_(other.mark_),
      mapping_(std::exchange(other.mapping_, nullptr)),
      on_device_(std::move(other.on_device_)),
      bytes_(std::exchange(other.bytes_, 0)),
      locked_bytes_(std::exchange(other.locked_bytes_, 0)),
      writable_(std::exchange(other.writable_, false)),
      huge_pages_(std::exchange(other.huge_pages_, false)) {}

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(mark_, other.mark_);
  std::swap(mapping_, other.mapping_);
  std::swap(on_device_, other.on_device_);
  std::swap(bytes_, other.bytes_);
  std::swap(locked_bytes_, other.locked_bytes_);
  std::swap(writable_, other.writable_);
  std::swap(huge_pages_, other.huge_pages_);
  return *this;
}

Slab::~Slab() {
  // What was not inherited is not there, or something else is.
  const bool is_ours = mapping_ != nullptr && memory_kind() == MemoryKind::host;
  if (is_ours && !(writable_ && mark_.is_inherited())) ::munmap(mapping_, bytes_);
}

MutableBytes Slab::memory() {
  FRESHET_CHECK(writable_);
  return {static_cast<std::byte*>(mapping_), bytes_};
}

Bytes Slab::memory() const { return {static_cast<const std::byte*>(mapping_), bytes_}; }

}  // namespace freshet
