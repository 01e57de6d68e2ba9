// SPDX-License-Identifier: Apache-2.0
#include "tests/repo/levels/support/job.h"

#include <gtest/gtest.h>
#include <sodium.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/safetensors/safetensors.h"

namespace freshet::test {
namespace {

std::uint64_t element_bytes(const std::string& dtype) {
  const std::map<std::string, std::uint64_t> sizes = {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"u8", 1}, {"i64", 8}};
  return sizes.at(dtype);
}

/// The whole tensor, word by word.
std::string whole_bytes(const std::string& seed, const std::string& name, std::uint64_t written, std::uint64_t bytes) {
  const std::string text = seed + "/" + name + "/" + std::to_string(written);
  unsigned char hash[16];
  crypto_generichash(hash, sizeof hash, reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  std::uint64_t k = 0;
  for (int i = 7; i >= 0; --i) k = k * 256 + hash[i];
  k /= 2;
  std::string out;
  for (std::uint64_t i = 0; out.size() < bytes; ++i) {
    std::uint64_t word = k + 2654435761ULL * i;
    for (int byte = 0; byte < 8; ++byte, word /= 256) out.push_back(static_cast<char>(word % 256));
  }
  out.resize(bytes);
  return out;
}

struct Expected {
  std::vector<std::uint64_t> shape;
  std::string bytes;
};

std::uint64_t product(const std::vector<std::uint64_t>& shape, std::size_t first, std::size_t last) {
  std::uint64_t all = 1;
  for (std::size_t i = first; i < last; ++i) all *= shape[i];
  return all;
}

Expected whole_tensor(const Json& state, const Json& tensor, const std::string& name, std::uint64_t step) {
  Expected expected{.shape = tensor["shape"].get<std::vector<std::uint64_t>>()};
  const auto every = tensor["every"].get<std::uint64_t>();
  const std::uint64_t written = every == 0 ? 0 : step - step % every;
  const std::uint64_t bytes = product(expected.shape, 0, expected.shape.size()) * element_bytes(tensor["dtype"]);
  expected.bytes = whole_bytes(state["seed"], name, written, bytes);
  return expected;
}

/// What a rank holds of it; nothing when that is nothing.
std::optional<Expected> held_tensor(const Json& state, const Json& tensor, std::uint64_t step, std::uint32_t ranks,
                                    std::uint32_t rank, std::string& name, const std::vector<std::string>& fresh) {
  const std::string layout = tensor["layout"];
  if (layout == "own") name += ".r" + std::to_string(rank);
  if (layout.starts_with("on:") && std::stoul(layout.substr(3)) % ranks != rank) return std::nullopt;
  const bool begins = std::ranges::find(fresh, name) != fresh.end();
  Expected whole = whole_tensor(state, tensor, name, begins ? 0 : step);
  if (!layout.starts_with("split:")) return whole;
  const std::size_t axis = std::stoul(layout.substr(6));
  const std::uint64_t rows = whole.shape[axis];
  const std::uint64_t each = (rows + ranks - 1) / ranks;
  const std::uint64_t row = product(whole.shape, axis + 1, whole.shape.size()) * element_bytes(tensor["dtype"]);
  Expected part;
  part.shape = whole.shape;
  part.shape[axis] = 0;
  for (std::uint64_t r = 0; r < rows; ++r) part.shape[axis] += r / each == rank ? 1 : 0;
  for (std::uint64_t outer = 0; outer < product(whole.shape, 0, axis); ++outer) {
    for (std::uint64_t r = 0; r < rows; ++r) {
      if (r / each == rank) part.bytes += whole.bytes.substr((outer * rows + r) * row, row);
    }
  }
  return part;
}

std::string compare(const std::string& path, const std::map<std::string, Expected>& expected) {
  const auto file = SafetensorsFile::read(path);
  if (!file) return file.error().message();
  std::size_t found = 0;
  for (const TensorView& view : file->tensors()) {
    const auto at = expected.find(view.spec.name);
    if (at == expected.end()) return view.spec.name + " should not be there";
    ++found;
    if (view.spec.shape != at->second.shape) return view.spec.name + " has another shape";
    const std::string_view bytes(reinterpret_cast<const char*>(view.data.data()), view.data.size());
    if (bytes != at->second.bytes) return view.spec.name + " has other bytes";
  }
  return found == expected.size() ? "" : "a tensor is missing";
}

}  // namespace

int RankRun::exit_code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

std::vector<Json> RankRun::events(const std::string& name) const {
  std::vector<Json> found;
  std::ranges::copy_if(lines, std::back_inserter(found), [&](const Json& line) { return line["event"] == name; });
  return found;
}

Json RankRun::started() const {
  const auto all = events("started");
  return all.empty() ? Json() : all.front();
}

std::uint64_t RankRun::reached(const std::string& level) const {
  std::uint64_t newest = 0;
  for (const Json& line : events("reached")) {
    if (line["level"] == level) newest = std::max(newest, line["version"].get<std::uint64_t>());
  }
  return newest;
}

Job::Job(std::string state) : state_(Json::parse(state)) { std::ofstream(folder_ / "state.json") << state; }

std::vector<std::unique_ptr<ChildProcess>> Job::start(std::uint32_t ranks, std::uint64_t steps,
                                                      const Options& options) {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  const std::string meet = options.meet.empty() ? meeting_address() : options.meet;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> words = {FRESHET_CHECKPOINT_RANKS,
                                      "--model",
                                      "net",
                                      "--state",
                                      folder_ / "state.json",
                                      "--steps",
                                      std::to_string(steps),
                                      "--dump",
                                      folder_ / "dump",
                                      "--rank",
                                      std::to_string(rank),
                                      "--ranks",
                                      std::to_string(ranks),
                                      "--meet",
                                      meet,
                                      "--local",
                                      local(rank)};
    // A loaded machine is no lost rank; who dies is noticed by its connection.
    const bool says_when = std::ranges::find(options.words, "--lost-after") != options.words.end();
    if (!says_when) words.insert(words.end(), {"--lost-after", "20"});
    words.insert(words.end(), options.words.begin(), options.words.end());
    if (const auto at = options.of.find(rank); at != options.of.end()) {
      words.insert(words.end(), at->second.begin(), at->second.end());
    }
    processes.push_back(std::make_unique<ChildProcess>(std::move(words)));
  }
  return processes;
}

RankRun Job::finish(ChildProcess& process) {
  RankRun run;
  while (const auto line = process.line()) {
    Json json = Json::parse(*line, nullptr, false);
    if (!json.is_discarded()) run.lines.push_back(std::move(json));
  }
  run.status = process.wait();
  return run;
}

std::vector<RankRun> Job::run(std::uint32_t ranks, std::uint64_t steps, const Options& options) {
  std::filesystem::remove_all(folder_ / "dump");
  const auto processes = start(ranks, steps, options);
  std::vector<RankRun> runs;
  for (const auto& process : processes) runs.push_back(finish(*process));
  return runs;
}

std::string Job::difference(const RankRun& run, std::uint32_t ranks, std::uint32_t rank) const {
  const Json started = run.started();
  if (started.is_null()) return "the rank did not start";
  const Json& restored = started["restored"];
  const std::uint64_t step = restored.is_null() ? 0 : restored["step"].get<std::uint64_t>();
  const auto fresh =
      restored.is_null() ? std::vector<std::string>() : restored["fresh"].get<std::vector<std::string>>();
  std::map<std::string, Expected> expected;
  for (const Json& tensor : state_["tensors"]) {
    std::string name = tensor["name"];
    auto held = held_tensor(state_, tensor, step, ranks, rank, name, fresh);
    if (held) expected.emplace(name, *std::move(held));
  }
  return compare(folder_ / ("dump/rank" + std::to_string(rank) + ".safetensors"), expected);
}

std::string Job::difference_of_file(const std::string& path, std::uint64_t step, std::uint32_t ranks) const {
  std::map<std::string, Expected> expected;
  for (const Json& tensor : state_["tensors"]) {
    const std::string name = tensor["name"];
    if (tensor["layout"] != "own") {
      expected.emplace(name, whole_tensor(state_, tensor, name, step));
      continue;
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::string own = name + ".r" + std::to_string(rank);
      expected.emplace(own, whole_tensor(state_, tensor, own, step));
    }
  }
  return compare(path, expected);
}

std::string Job::difference_of_served_file(const std::string& path, std::uint64_t step) const {
  std::map<std::string, Expected> expected;
  for (const Json& tensor : state_["tensors"]) {
    const std::string name = tensor["name"];
    const bool is_served = tensor["role"] == "weight" || tensor["role"] == "buffer";
    if (is_served) expected.emplace(name, whole_tensor(state_, tensor, name, step));
  }
  return compare(path, expected);
}

std::vector<std::string> Job::shards(std::uint32_t rank) const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(local(rank) + "/net")) {
    if (entry.path().extension() == ".shard") files.push_back(entry.path().string());
  }
  std::ranges::sort(
      files, {}, [](const std::string& path) { return std::stoull(std::filesystem::path(path).filename().string()); });
  return files;
}

void expect_all_exit(const std::vector<RankRun>& runs, int code) {
  for (const RankRun& run : runs) EXPECT_EQ(run.exit_code(), code);
}

void expect_all_hold_what_they_should(const Job& job, const std::vector<RankRun>& runs) {
  for (std::uint32_t rank = 0; rank < runs.size(); ++rank) {
    EXPECT_EQ(job.difference(runs[rank], static_cast<std::uint32_t>(runs.size()), rank), "") << "rank " << rank;
  }
}

std::string mixed_state() {
  return R"({"seed":"7","tensors":[
    {"name":"emb","dtype":"f32","shape":[1000,30],"role":"weight","layout":"replicated","every":2},
    {"name":"w1","dtype":"f32","shape":[7,101],"role":"weight","layout":"split:0","every":1},
    {"name":"w2","dtype":"bf16","shape":[33,5,9],"role":"weight","layout":"split:2","every":3},
    {"name":"frozen","dtype":"f32","shape":[400000],"role":"weight","layout":"replicated","every":0},
    {"name":"opt","dtype":"f32","shape":[1000],"role":"optimizer","layout":"on:5","every":1},
    {"name":"rng","dtype":"u8","shape":[13],"role":"opaque","layout":"own","every":1},
    {"name":"none","dtype":"f32","shape":[0,4],"role":"buffer","layout":"split:0","every":1},
    {"name":"mean","dtype":"f32","shape":[50],"role":"buffer","layout":"from:1","every":1},
    {"name":"scalar","dtype":"f64","shape":[],"role":"buffer","layout":"replicated","every":1}]})";
}

}  // namespace freshet::test
