// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: every file of its corpus, every seed, and seeded mutations of both. So each
// plain test run looks a little further, and a finding's file, put into the corpus, is looked at for ever.
//
// usage: NAME_fuzz [CORPUS-FOLDER]     NAME_fuzz --write-seeds FOLDER

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "tests/fuzz/fuzz_target.h"

namespace freshet::fuzz {
namespace {

constexpr unsigned kSeed = 20261121;
constexpr int kMutationsPerInput = 20000;

std::vector<Input> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.push_back(input_of(std::string(std::istreambuf_iterator<char>(file), {})));
  }
  return inputs;
}

int write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::size_t number = 0;
  for (const Input& seed : seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) return 1;
  }
  return 0;
}

void run(const Input& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

/// One to four edits: a byte set, a word set to a treacherous number, a range removed, a range repeated.
Input mutate(Input input, std::mt19937& random) {
  const auto pick = [&random](std::size_t count) { return count == 0 ? 0 : random() % count; };
  constexpr std::uint32_t kTreacherous[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff8, 0x40000, 0x10000};
  for (std::size_t edits = 1 + pick(4); edits > 0 && !input.empty(); --edits) {
    const std::size_t at = pick(input.size());
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    const auto length = static_cast<std::ptrdiff_t>(1 + pick(std::min<std::size_t>(16, input.size() - at)));
    switch (pick(4)) {
      case 0: input[at] = static_cast<std::byte>(random()); break;
      case 1: {
        const std::uint32_t value = kTreacherous[pick(std::size(kTreacherous))];
        for (std::size_t i = 0; i < 4 && (at & ~std::size_t{3}) + i < input.size(); ++i) {
          input[(at & ~std::size_t{3}) + i] = static_cast<std::byte>(value >> (8 * i));
        }
        break;
      }
      case 2: input.erase(place, place + length); break;
      default: {
        const Input range(place, place + length);
        input.insert(place, range.begin(), range.end());
      }
    }
  }
  return input;
}

int replay(const std::filesystem::path& corpus) {
  std::vector<Input> inputs = read_corpus(corpus);
  const std::size_t files = inputs.size();
  for (Input& seed : seeds()) inputs.push_back(std::move(seed));
  std::printf("%zu corpus files, %zu seeds, %d mutations of each, random seed %u\n", files, inputs.size() - files,
              kMutationsPerInput, kSeed);
  std::fflush(stdout);
  std::mt19937 random(kSeed);
  run({});
  for (const Input& input : inputs) {
    run(input);
    for (int i = 0; i < kMutationsPerInput; ++i) run(mutate(input, random));
  }
  return 0;
}

}  // namespace
}  // namespace freshet::fuzz

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--write-seeds") return freshet::fuzz::write_seeds(argv[2]);
  return freshet::fuzz::replay(argc > 1 ? argv[1] : "");
}
