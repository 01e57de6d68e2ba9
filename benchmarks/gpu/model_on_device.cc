// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/model_on_device.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "core/base/format.h"
#include "core/gpu/digester.h"

namespace freshet::benchmarks {
namespace {

constexpr auto kRowAtMost = std::chrono::seconds(20);

double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Result<std::unique_ptr<ModelOnDevice>> ModelOnDevice::make(std::shared_ptr<gpu::Device> device, const GpuSizes& sizes) {
  auto model = std::unique_ptr<ModelOnDevice>(new ModelOnDevice(std::move(device), sizes));
  FRESHET_ASSIGN(model->stream_, model->device_->create_stream());
  FRESHET_ASSIGN(model->done_, model->device_->create_event());
  for (gpu::Memory* const memory : {&model->old_, &model->new_, &model->fresh_}) {
    FRESHET_ASSIGN(*memory, model->device_->allocate(model->bytes()));
  }
  return model;
}

Status ModelOnDevice::write_all(std::byte* to, std::span<const std::byte> tensor) {
  FRESHET_TRY(copy(to, tensor.data(), tensor.size()));
  for (std::uint64_t i = 1; i < tensors_; ++i) FRESHET_TRY(copy(to + i * tensor_bytes(), to, tensor_bytes()));
  return finish();
}

Status ModelOnDevice::write(double share) {
  std::mt19937_64 random(1);
  std::vector<std::uint16_t> tensor(tensor_bytes() / kElementBytes);
  for (std::uint16_t& element : tensor) element = static_cast<std::uint16_t>(random());
  FRESHET_TRY(write_all(old_version(), std::as_bytes(std::span(tensor))));
  changed_ = 0;
  const auto below = static_cast<std::uint64_t>(share * 65536.0);
  for (std::uint16_t& element : tensor) {
    const std::uint64_t word = random();
    if (word % 65536 >= below) continue;
    element = static_cast<std::uint16_t>(element ^ (1 + (word >> 16) % 255));
    ++changed_;
  }
  digest_ = digest_of(std::as_bytes(std::span(tensor)));
  return write_all(new_version(), std::as_bytes(std::span(tensor)));
}

Status ModelOnDevice::finish() {
  FRESHET_TRY(device_->record(done_, stream()));
  return device_->wait(done_, kRowAtMost);
}

/// A wait that sleeps would add up to half a millisecond.
Result<double> ModelOnDevice::ms(const std::function<Status()>& queue) {
  const auto begin = std::chrono::steady_clock::now();
  FRESHET_TRY(queue());
  FRESHET_TRY(device_->record(done_, stream()));
  while (true) {
    FRESHET_ASSIGN(const bool is_done, device_->is_done(done_));
    const double ms = ms_since(begin);
    if (is_done) return ms;
    if (ms > std::chrono::duration<double, std::milli>(kRowAtMost).count()) {
      return fail(Code::timed_out, format("the device did not end within {} s", kRowAtMost.count()));
    }
  }
}

Status ModelOnDevice::check_new(const std::byte* model) {
  std::vector<Bytes> ranges;
  for (std::uint64_t i = 0; i < tensors_; ++i) ranges.push_back({model + i * tensor_bytes(), tensor_bytes()});
  gpu::Digester digester(device_);
  gpu::Digester::Job job;
  const Status queued = digester.queue(stream(), ranges, job);
  FRESHET_TRY(finish());
  FRESHET_TRY(Status(queued));
  const std::vector<Digest> digests = job.digests();
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (digests[i] == digest_) continue;
    return fail(Code::corrupt, format("tensor {} has the digest {}, not {}", i, to_hex(digests[i]), to_hex(digest_)));
  }
  return {};
}

Status ModelOnDevice::compare(const std::string& ratio, const std::string& peer_name,
                              const std::function<Result<double>()>& peer, const std::function<Result<double>()>& ours,
                              Report& report) {
  Samples of_peer;
  Samples of_ours;
  for (int turn = -1; turn < repetitions(); ++turn) {
    FRESHET_ASSIGN(const double peer_ms, peer());
    FRESHET_ASSIGN(const double ours_ms, ours());
    if (turn < 0) continue;
    of_peer.add(peer_ms);
    of_ours.add(ours_ms);
  }
  report.add_row(ratio, peer_name, "ms", of_peer);
  report.add_row(ratio, "freshet", "ms", of_ours);
  report.set_ratio(ratio, of_peer.median() / of_ours.median());
  if (sizes_.tells) std::fprintf(stderr, "%s %.2f\n", ratio.c_str(), of_peer.median() / of_ours.median());
  return {};
}

}  // namespace freshet::benchmarks
