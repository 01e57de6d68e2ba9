// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/roles/resume.h"

#include <thread>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "examples/live_run/options.h"
#include "examples/live_run/role.h"
#include "examples/live_run/roles/scorer.h"
#include "repo/repository.h"

namespace freshet::live {
namespace {

constexpr Duration kPublisherPatience = std::chrono::seconds(20);
constexpr Duration kPause = std::chrono::milliseconds(100);

Result<RecordId> record_of(const Manifest& manifest) {
  for (const auto& [key, value] : manifest.tags) {
    if (key != kRecordTag) continue;
    if (const auto id = parse_record_id(value)) return *id;
  }
  return fail(Code::failed_precondition, format("{} is not of this run: it names no record", to_string(manifest.name)));
}

Result<Weights> read_weights(const Layout& layout, const Repository& repository, const VersionRecord& version) {
  FRESHET_ASSIGN(Weights weights, Weights::uninitialised(layout));
  std::vector<Repository::TensorRead> reads;
  for (std::uint32_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    const MutableBytes out(reinterpret_cast<std::byte*>(weights.tensor(tensor)), layout.tensors()[tensor].bytes());
    reads.push_back({.tensor = tensor, .out = out});
  }
  FRESHET_TRY(repository.read(version, reads));
  return weights;
}

Result<StartingPoint> try_resume(const Layout& layout, const std::string& folder) {
  auto backend = open_rocks_backend({.folder = folder, .create = false, .read_only = true});
  if (!backend && backend.error().code() == Code::not_found) return begin(layout);
  if (!backend) return fail(std::move(backend).error());
  FRESHET_ASSIGN(const auto repository, Repository::open(std::move(*backend), {}));
  auto version = repository->get({.model = kModelName});
  if (!version && version.error().code() == Code::not_found) return begin(layout);
  if (!version) return fail(std::move(version).error());

  FRESHET_TRY(check_shape(layout, *version->manifest.architecture));
  FRESHET_ASSIGN(const RecordId record, record_of(version->manifest));
  FRESHET_ASSIGN(Weights weights, read_weights(layout, *repository, *version));
  return StartingPoint{.weights = std::move(weights),
                       .resumed = std::make_shared<const Manifest>(std::move(version->manifest)),
                       .record = record};
}

}  // namespace

Result<StartingPoint> begin(const Layout& layout) {
  FRESHET_ASSIGN(Weights weights, Weights::initial(layout));
  return StartingPoint{.weights = std::move(weights)};
}

Result<StartingPoint> resume_or_begin(const Layout& layout, const std::string& folder) {
  const Time until = system_clock().now() + kPublisherPatience;
  while (true) {
    auto start = try_resume(layout, folder);
    if (start || stop_requested() || system_clock().now() > until) return start;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace freshet::live
