// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tiering/training_set.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

/// Cheap bytes that differ from word to word and from file to file.
void fill(std::vector<std::uint64_t>& words, std::uint64_t state) {
  for (std::uint64_t& word : words) {
    state += 0x9e3779b97f4a7c15ULL;
    std::uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    word = mixed ^ (mixed >> 31);
  }
}

/// How many pages of the file the page cache still has.
Result<std::size_t> pages_held(int fd, std::size_t bytes) {
  if (bytes == 0) return std::size_t{0};
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return fail_errno(errno, "map a file");
  std::vector<unsigned char> held((bytes + 4095) / 4096);
  const int result = ::mincore(map, bytes, held.data());
  ::munmap(map, bytes);
  if (result != 0) return fail_errno(errno, "mincore");
  return static_cast<std::size_t>(std::ranges::count_if(held, [](unsigned char page) { return (page & 1) != 0; }));
}

/// Counts the pages that stay, and all.
Status forget_once(const std::string& folder, std::size_t& still, std::size_t& all) {
  const FileDescriptor at(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at || ::syncfs(at.get()) != 0) return fail_errno(errno, format("sync {}", folder));
  still = 0;
  all = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    struct stat info {};
    if (::lstat(entry->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const FileDescriptor file(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) continue;
    (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    FRESHET_ASSIGN(const std::size_t held, pages_held(file.get(), static_cast<std::size_t>(info.st_size)));
    still += held;
    all += static_cast<std::size_t>(info.st_size + 4095) / 4096;
  }
  return {};
}

}  // namespace

std::uint64_t TrainingSet::bytes() const { return std::accumulate(files.begin(), files.end(), std::uint64_t{0}); }

TrainingSet small_files(std::size_t count, unsigned seed) {
  TrainingSet set{.name = format("{}_small", count), .files = {}, .piece_bytes = std::size_t{1} << 20, .seed = seed};
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 0.5);
  for (std::size_t i = 0; i < count; ++i) {
    set.files.push_back(static_cast<std::uint64_t>(110'000 * std::exp(normal(random))));
  }
  return set;
}

TrainingSet record_files(std::size_t count, std::uint64_t bytes_each, unsigned seed) {
  return {.name = format("{}_records", count),
          .files = std::vector<std::uint64_t>(count, bytes_each),
          .piece_bytes = 128 * 1024,
          .seed = seed};
}

std::string file_name(std::size_t number) { return format("{:06}", number); }

void Sum::add(const void* bytes, std::size_t count) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + i, 8);
    sum += word;
  }
  std::uint64_t last = 0;
  std::memcpy(&last, at + count / 8 * 8, count % 8);
  value += sum + last + count;
}

Result<std::uint64_t> write_set(const TrainingSet& set, const std::string& folder, const std::string& list) {
  std::filesystem::create_directories(folder);
  std::ofstream names(list);
  std::vector<std::uint64_t> words;
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < set.files.size(); ++i) {
    words.resize((set.files[i] + 7) / 8);
    fill(words, set.seed * 1'000'003ULL + i);
    const std::string path = folder + "/" + file_name(i);
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(set.files[i]));
    if (!out.flush()) return fail_errno(errno, format("write {}", path));
    Sum sum;
    sum.add(words.data(), set.files[i]);
    all += sum.value;
    names << file_name(i) << "\n";
  }
  if (!names.flush()) return fail_errno(errno, format("write {}", list));
  const FileDescriptor at(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at || ::syncfs(at.get()) != 0) return fail_errno(errno, format("sync {}", folder));
  return all;
}

Status forget_pages(const std::string& folder) {
  // Copies may be made meanwhile.
  constexpr int kTries = 10;
  std::size_t held = 0;
  std::size_t all = 0;
  for (int i = 0; i < kTries; ++i) {
    FRESHET_TRY(forget_once(folder, held, all));
    if (held <= all / 50) return {};
  }
  return fail(Code::failed_precondition, format("{} of {} pages of {} stay in memory", held, all, folder));
}

}  // namespace freshet::benchmarks
