// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/device/device_tensors.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/log.h"

namespace freshet {
namespace {

constexpr std::uint64_t kTogetherBytesMax = gpu::kCopyTileBytes;  // Of a tensor that goes with others.
constexpr std::size_t kTogetherMin = 16;                          // Fewer are as quick alone.
constexpr Duration kLandAtMost = std::chrono::seconds(30);

std::string named(const Snapshot& snapshot) { return to_string(snapshot.manifest().name); }

}  // namespace

DeviceTensors::DeviceTensors(std::shared_ptr<gpu::Device> device, const Deltas& deltas)
    : device_(std::move(device)), deltas_(deltas), registrations_(detail::SlabRegistrations::of(device_)) {}

Result<std::unique_ptr<DeviceTensors>> DeviceTensors::bind(std::shared_ptr<gpu::Device> device,
                                                           std::vector<DeviceTensor> tensors, const Deltas& deltas) {
  if (device == nullptr) return refuse("bind tensors: no device");
  auto bound = std::unique_ptr<DeviceTensors>(new DeviceTensors(std::move(device), deltas));
  bound->rows_.reserve(tensors.size());
  for (DeviceTensor& tensor : tensors) bound->rows_.push_back({.tensor = std::move(tensor), .owner = std::nullopt});
  FRESHET_TRY(bound->check_memory());
  FRESHET_ASSIGN(bound->user_done_, bound->device_->create_event());
  FRESHET_ASSIGN(bound->refreshed_, bound->device_->create_event());
  return bound;
}

/// The driver's copies check no address, and the kernel's neither.
Status DeviceTensors::check_memory() {
  std::vector<const DeviceTensor*> by_address;
  std::set<std::string_view> names;
  for (const Row& row : rows_) {
    const TensorSpec& spec = row.tensor.spec;
    FRESHET_TRY(spec.check());
    if (!names.insert(spec.name).second) return refuse(format("bind tensor {}: two tensors have this name", spec.name));
    const std::uint64_t bytes = spec.bytes();
    if (bytes == 0) continue;
    const auto* const begin = static_cast<const std::byte*>(row.tensor.address);
    for (const std::byte* const at : {begin, begin + (bytes - 1)}) {
      FRESHET_ASSIGN(const gpu::PointerInfo info, device_->describe(at));
      const bool is_there = info.kind == MemoryKind::device || info.kind == MemoryKind::managed;
      if (!is_there || (info.device && *info.device != device_->info().uuid)) {
        return refuse(format("bind tensor {}: its {} bytes at {} are not memory of device {}", spec.name, bytes,
                             row.tensor.address, device_->info().uuid.text()));
      }
    }
    by_address.push_back(&row.tensor);
  }
  std::sort(by_address.begin(), by_address.end(),
            [](const auto* a, const auto* b) { return std::less<>()(a->address, b->address); });
  for (std::size_t i = 1; i < by_address.size(); ++i) {
    const DeviceTensor& before = *by_address[i - 1];
    if (static_cast<const std::byte*>(before.address) + before.spec.bytes() > by_address[i]->address) {
      return refuse(
          format("bind tensor {}: tensor {} lies in the same memory", by_address[i]->spec.name, before.spec.name));
    }
  }
  return {};
}

DeviceTensors::~DeviceTensors() { end(); }

bool DeviceTensors::end() {
  const auto deadline = std::chrono::steady_clock::now() + kLandAtMost;
  Duration pause = std::chrono::microseconds(20);
  for (collect(); !flights_.empty(); collect()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      log_line(
          LogLevel::warning,
          format("copies to device {} still run after half a minute: {} versions stay pinned until the process ends",
                 device_->info().uuid.text(), flights_.size()));
      static_cast<void>(new std::pair(std::exchange(flights_, {}), registrations_));
      return false;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(1));
  }
  return true;
}

/// A stuck device runs nothing any more, and a forked child has no device: there the call fails for ever, and nothing
/// is read any more.
bool DeviceTensors::has_landed(Flight& flight) {
  if (!flight.is_recorded) flight.is_recorded = device_->record(flight.done, flight.stream).has_value();
  if (!flight.is_recorded) return device_->is_lost();
  const Result<bool> is_done = device_->is_done(flight.done);
  return is_done ? *is_done : device_->is_lost();
}

void DeviceTensors::collect() {
  std::erase_if(flights_, [this](Flight& flight) {
    if (!has_landed(flight)) return false;
    const bool is_larger =
        flight.table != nullptr && (spare_ == nullptr || spare_->capacity() < flight.table->capacity());
    if (is_larger) spare_ = std::move(flight.table);
    if (flight.deltas != nullptr) {
      check_deltas(flight);
      delta_table_ = std::move(flight.deltas);
    }
    return true;
  });
}

/// What a delta did to memory that did not have its base is nothing's: the next refresh copies the tensor. A lost
/// device has told no results.
void DeviceTensors::check_deltas(const Flight& flight) {
  for (std::size_t i = 0; i < flight.delta_rows.size() && !device_->is_lost(); ++i) {
    Row& row = rows_[flight.delta_rows[i]];
    Status status = flight.deltas->check(i);
    if (status) continue;
    row.owner = std::nullopt;
    is_mixed_ = true;
    version_ = 0;
    bad_delta_ = std::move(status.error()).with_context(format("tensor {} on device", row.tensor.spec.name));
    log_line(LogLevel::warning, format("{}; somebody else wrote the tensor, or memory is damaged; the next refresh "
                                       "copies the tensor",
                                       bad_delta_->message()));
  }
}

std::size_t DeviceTensors::pins() {
  collect();
  return flights_.size();
}

Status DeviceTensors::find_tensors(const Manifest& manifest) {
  if (architecture_ != nullptr && architecture_->digest() == manifest.architecture->digest()) return {};
  std::vector<std::uint32_t> places;
  places.reserve(rows_.size());
  const std::string name = to_string(manifest.name);
  for (const Row& row : rows_) {
    const TensorSpec& ours = row.tensor.spec;
    const auto place = manifest.architecture->tensor_named(ours.name);
    if (!place) return fail(Code::failed_precondition, format("tensor {}: {} does not have it", ours.name, name));
    const TensorSpec& theirs = manifest.architecture->tensors()[*place];
    if (theirs.dtype != ours.dtype || theirs.shape != ours.shape) {
      return fail(Code::failed_precondition,
                  format("tensor {}: {} has {}, the server has {}", ours.name, name,
                         describe(theirs.dtype, theirs.shape), describe(ours.dtype, ours.shape)));
    }
    places.push_back(*place);
  }
  places_ = std::move(places);
  architecture_ = manifest.architecture;
  return {};
}

Result<std::vector<DeviceTensors::Change>> DeviceTensors::changes_in(const Snapshot& snapshot) {
  const Manifest& manifest = snapshot.manifest();
  FRESHET_TRY(find_tensors(manifest));
  std::vector<Change> changes;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const std::uint32_t tensor = places_[row];
    const Bytes from = snapshot.bytes(tensor);
    if (from.size() != rows_[row].tensor.spec.bytes()) {
      return fail(Code::failed_precondition, format("tensor {}: this subscriber of {} does not take it",
                                                    rows_[row].tensor.spec.name, named(snapshot)));
    }
    if (rows_[row].owner == manifest.owners[tensor]) continue;
    const Bytes near = snapshot.device_bytes(tensor, device_->info().uuid);
    changes.push_back(
        {.row = row, .tensor = tensor, .from = near.empty() ? from : near, .is_on_device = !near.empty()});
    const detail::ReceivedDelta* const delta = snapshot.delta(tensor);
    const bool fits = delta != nullptr && rows_[row].owner == delta->spec.base && near.empty() &&
                      rows_[row].deltas_in_a_row < deltas_.in_a_row_max;
    if (fits && has_kernels_ && from.size() > kTogetherBytesMax) changes.back().delta = delta;
  }
  return changes;
}

/// For each change, whether the device can read its bytes by their address.
Result<std::vector<bool>> DeviceTensors::registered(const Snapshot& snapshot, std::span<const Change> changes) {
  std::vector<Snapshot::Piece> slabs = snapshot.pieces();
  const std::less<> before;
  std::sort(slabs.begin(), slabs.end(),
            [&](const auto& a, const auto& b) { return before(a.memory.data(), b.memory.data()); });
  std::vector<std::optional<bool>> known(slabs.size());
  std::vector<bool> answers(changes.size());
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Bytes from = changes[i].from;
    answers[i] = changes[i].is_on_device;
    if (answers[i]) continue;
    auto after = std::upper_bound(slabs.begin(), slabs.end(), from.data(),
                                  [&](const auto* at, const auto& slab) { return before(at, slab.memory.data()); });
    if (from.empty() || after == slabs.begin()) continue;
    const auto slab = std::prev(after);
    if (before(slab->memory.data() + slab->memory.size(), from.data() + from.size())) continue;
    std::optional<bool>& answer = known[static_cast<std::size_t>(slab - slabs.begin())];
    if (!answer) {
      FRESHET_ASSIGN(answer, registrations_->ensure(*slab));
    }
    answers[i] = *answer;
  }
  return answers;
}

Status DeviceTensors::prepare(const Snapshot& snapshot) {
  if (!snapshot) return refuse("prepare: the snapshot is empty");
  FRESHET_ASSIGN(const std::vector<Change> changes, changes_in(snapshot));
  FRESHET_TRY(registered(snapshot, changes));
  return {};
}

Result<DeviceTensors::Plan> DeviceTensors::plan(const Snapshot& snapshot, std::vector<Change> changes) {
  FRESHET_ASSIGN(const std::vector<bool> is_registered, registered(snapshot, changes));
  // A device may read registered memory by another address than the host's; the driver's copies know it.
  const bool reaches_host = device_->info().kernels_reach_host;
  const bool has_deltas = std::ranges::any_of(changes, [](const Change& change) { return change.delta != nullptr; });
  std::uint64_t room = has_deltas ? room_for_deltas() : 0;
  Plan plan;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const std::uint64_t delta_bytes = changes[i].delta != nullptr ? changes[i].delta->table_bytes() : 0;
    if (delta_bytes > 0 && delta_bytes <= room) {
      room -= delta_bytes;
      plan.by_delta.push_back(changes[i]);
      continue;
    }
    const bool is_small = changes[i].from.size() <= kTogetherBytesMax && !changes[i].from.empty();
    const bool launches = has_kernels_ && is_registered[i] && (reaches_host || changes[i].is_on_device);
    (is_small && launches ? plan.together : plan.alone).push_back(changes[i]);
  }
  if (plan.together.size() >= kTogetherMin) return plan;
  plan.alone.insert(plan.alone.end(), plan.together.begin(), plan.together.end());
  plan.together.clear();
  return plan;
}

/// Of the table, which is made once: the driver takes its time, and the end of one would wait for the device.
std::uint64_t DeviceTensors::room_for_deltas() {
  if (!std::exchange(has_delta_table_, true)) {
    std::uint64_t bytes = 0;
    for (const Row& row : rows_) {
      if (row.tensor.spec.bytes() > kTogetherBytesMax) bytes += row.tensor.spec.bytes() / 2;
    }
    auto made = detail::DeltaTable::make(device_, std::min(bytes, deltas_.bytes_max));
    if (made) delta_table_ = std::move(*made);
    if (!made) {
      log_line(LogLevel::warning, format("{}; tensors that come by delta are copied whole to device {}; this is said "
                                         "once",
                                         made.error().message(), device_->info().uuid.text()));
    }
  }
  return delta_table_ != nullptr ? std::min(delta_table_->capacity(), deltas_.bytes_max) : 0;
}

/// Null: there is no memory for one, so each tensor goes alone.
std::unique_ptr<detail::CopyTable> DeviceTensors::table_for(std::size_t rows) {
  if (spare_ != nullptr && spare_->capacity() >= rows) return std::move(spare_);
  auto made = detail::CopyTable::make(device_, rows);
  return made ? std::move(*made) : nullptr;
}

/// A stream that its owner destroyed meanwhile is forgotten: else no refresh would succeed any more.
Status DeviceTensors::wait_for_users(gpu::StreamHandle stream) {
  for (auto user = users_.begin(); user != users_.end();) {
    if (*user == stream.native) {
      ++user;
      continue;
    }
    const Status recorded = device_->record(user_done_, {*user});
    if (!recorded && recorded.error().code() == Code::invalid_argument) {
      log_line(LogLevel::warning,
               format("a refresh waits no longer for a stream that use() named: {}", recorded.error().message()));
      user = users_.erase(user);
      continue;
    }
    FRESHET_TRY(recorded);
    FRESHET_TRY(device_->make_wait(stream, user_done_.handle()));
    ++user;
  }
  return {};
}

Result<DeviceRefresh> DeviceTensors::refresh(std::shared_ptr<const Snapshot> snapshot, gpu::StreamHandle stream) {
  if (snapshot == nullptr || !*snapshot) return refuse("refresh: the snapshot is empty");
  collect();
  registrations_->end_unused();
  const Manifest& manifest = snapshot->manifest();
  DeviceRefresh report{.version = snapshot->version()};
  FRESHET_ASSIGN(std::vector<Change> changes, changes_in(*snapshot));
  // A refresh that failed amid its copies may have queued all of them, and not the event.
  if (!changes.empty() || is_mixed_) {
    report.tensors = changes.size();
    for (const Change& change : changes) report.bytes += change.from.size();
    FRESHET_ASSIGN(Plan plan, this->plan(*snapshot, std::move(changes)));
    report.deltas = plan.by_delta.size();
    Flight flight{.snapshot = snapshot, .stream = stream};
    FRESHET_ASSIGN(flight.done, device_->create_event());
    if (!plan.together.empty()) flight.table = table_for(plan.together.size());
    FRESHET_TRY(wait_for_users(stream));
    // It refuses a stream that is captured into a graph, before the stream gets anything.
    FRESHET_TRY(device_->record(user_done_, stream));
    // From here on nothing is given back before the device says so.
    flights_.push_back(std::move(flight));
    users_.insert(stream.native);
    is_mixed_ = true;
    version_ = 0;
    Status status = queue(plan, manifest, flights_.back());
    flights_.back().is_recorded = device_->record(flights_.back().done, stream).has_value();
    if (!status) return fail(std::move(status.error()).with_context(format("copy {} to device", named(*snapshot))));
    FRESHET_TRY(device_->record(refreshed_, stream));
    users_ = {stream.native};
  }
  is_mixed_ = false;
  bad_delta_.reset();
  version_ = report.version;
  return report;
}

/// False: no tensor was touched, and each is to be copied.
Result<bool> DeviceTensors::queue_deltas(std::span<const Change> changes, const Manifest& manifest, Flight& flight) {
  std::vector<detail::DeltaTable::Row> rows;
  for (const Change& change : changes) {
    rows.push_back({.memory = static_cast<std::byte*>(rows_[change.row].tensor.address), .delta = change.delta});
  }
  if (rows.empty()) return true;
  flight.deltas = std::move(delta_table_);
  for (const Change& change : changes) rows_[change.row].owner = std::nullopt;
  const Status queued = flight.deltas->queue(*device_, flight.stream, rows);
  if (!queued && queued.error().code() == Code::unsupported) {
    has_kernels_ = false;
    return false;
  }
  FRESHET_TRY(queued);
  for (const Change& change : changes) {
    rows_[change.row].owner = manifest.owners[change.tensor];
    ++rows_[change.row].deltas_in_a_row;
    flight.delta_rows.push_back(change.row);
  }
  return true;
}

Status DeviceTensors::queue(const Plan& plan, const Manifest& manifest, Flight& flight) {
  FRESHET_ASSIGN(const bool are_applied, queue_deltas(plan.by_delta, manifest, flight));
  if (!are_applied) FRESHET_TRY(queue_alone(plan.by_delta, manifest, flight.stream));
  FRESHET_TRY(queue_alone(plan.alone, manifest, flight.stream));
  if (flight.table == nullptr) return queue_alone(plan.together, manifest, flight.stream);
  std::vector<gpu::CopyTensor> table;
  table.reserve(plan.together.size());
  for (const Change& change : plan.together) {
    table.push_back({.from = reinterpret_cast<const std::uint8_t*>(change.from.data()),
                     .to = static_cast<std::uint8_t*>(rows_[change.row].tensor.address),
                     .bytes = change.from.size(),
                     .first_tile = 0});
  }
  const Status launched = flight.table->queue(*device_, flight.stream, table);
  if (!launched && launched.error().code() == Code::unsupported) {
    has_kernels_ = false;
    return queue_alone(plan.together, manifest, flight.stream);
  }
  FRESHET_TRY(launched);
  for (const Change& change : plan.together) rows_[change.row].owner = manifest.owners[change.tensor];
  return {};
}

Status DeviceTensors::queue_alone(std::span<const Change> changes, const Manifest& manifest, gpu::StreamHandle stream) {
  for (const Change& change : changes) {
    Row& row = rows_[change.row];
    row.owner = std::nullopt;
    if (!change.from.empty()) {
      Status copied = device_->copy(stream, row.tensor.address, change.from.data(), change.from.size());
      if (!copied) return fail(std::move(copied.error()).with_context("tensor " + row.tensor.spec.name));
    }
    row.owner = manifest.owners[change.tensor];
    row.deltas_in_a_row = 0;
  }
  return {};
}

Status DeviceTensors::use(gpu::StreamHandle stream) {
  collect();
  if (users_.size() >= kUsersMax && !users_.contains(stream.native)) {
    return fail(Code::out_of_space, format("use a stream: {} others were named since the last refresh that copied "
                                           "something; take streams from a pool",
                                           users_.size()));
  }
  // Each time: a new stream may have the handle of one that is gone.
  FRESHET_TRY(device_->make_wait(stream, refreshed_.handle()));
  users_.insert(stream.native);
  return {};
}

void DeviceTensors::forget() {
  for (Row& row : rows_) row.owner = std::nullopt;
}

Status DeviceTensors::forget(std::string_view name) {
  for (Row& row : rows_) {
    if (row.tensor.spec.name != name) continue;
    row.owner = std::nullopt;
    return {};
  }
  return fail(Code::not_found, format("forget tensor {}: no such tensor was bound", name));
}

Status DeviceTensors::wait(Duration at_most) {
  const Time deadline = deadline_in(at_most);
  Status status;
  for (Flight& flight : flights_) {
    if (!flight.is_recorded) status = device_->record(flight.done, flight.stream);
    flight.is_recorded = status.has_value();
    if (status) status = device_->wait(flight.done, std::max(Duration::zero(), deadline - system_clock().now()));
    if (!status) break;
  }
  collect();
  if (status && bad_delta_) return fail(*bad_delta_);
  return status;
}

}  // namespace freshet
