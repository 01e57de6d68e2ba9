// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/patient_publisher.h"

#include "core/base/format.h"
#include "transport/directory/directory.h"

namespace freshet::cli {
namespace {

/// Readers that hold too much of the arena make a publish wait at most this long; a version's seal comes far sooner.
constexpr Duration kReleasePatience = std::chrono::seconds(30);
/// Between two attempts to reach a directory; each one waits for the server too.
constexpr Duration kDirectoryPause = std::chrono::seconds(1);

double milliseconds(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

}  // namespace

Result<std::unique_ptr<Publisher>> open_patiently(Program& program, const PublisherOptions& options) {
  for (bool told = false;; told = true) {
    Result<std::unique_ptr<Publisher>> publisher = Publisher::open(options);
    if (publisher) return publisher;
    const Error& error = publisher.error();
    if (error.code() == Code::already_exists) return fail(Code::unavailable, error.message());
    const bool is_away = error.code() == Code::unavailable || error.code() == Code::timed_out;
    if (!is_away || !is_remote_directory(options.hub_options.directory)) return publisher;
    if (!told) program.out.log(error.message() + "; waiting for the directory");
    const Time again = system_clock().now() + kDirectoryPause;
    if (program.interrupt.wait_until(again)) return fail(Code::cancelled, "interrupted");
  }
}

Status PatientPublisher::publish(std::span<const TensorView> tensors, const PublishOptions& options, const Json& more) {
  FRESHET_ASSIGN(const PublishReceipt receipt, publish_patiently(tensors, options));
  FRESHET_ASSIGN(const CommitReport report, wait_sealed(receipt.version));
  return print(report, receipt, more);
}

Result<PublishReceipt> PatientPublisher::publish_patiently(std::span<const TensorView> tensors,
                                                           const PublishOptions& options) {
  const Time deadline = system_clock().now() + kReleasePatience;
  for (;;) {
    Result<PublishReceipt> receipt = publisher_.publish(tensors, options);
    const Time now = system_clock().now();
    if (receipt || receipt.error().code() != Code::out_of_space || now >= deadline) return receipt;
    if (program_.interrupt.wait_until(now + kInterruptLatency)) return fail(Code::cancelled, "interrupted");
  }
}

Result<CommitReport> PatientPublisher::wait_sealed(VersionNumber version) {
  const Time deadline = system_clock().now() + kReleasePatience;
  for (;;) {
    Result<CommitReport> report = publisher_.wait_committed(version, kInterruptLatency);
    if (report || report.error().code() != Code::timed_out || system_clock().now() >= deadline) return report;
    if (program_.interrupt.requested()) return fail(Code::cancelled, "interrupted");
  }
}

Status PatientPublisher::print(const CommitReport& report, const PublishReceipt& receipt, const Json& more) {
  Json line{{"model", model_},
            {"version", report.version},
            {"tensors", report.tensors},
            {"changed_tensors", report.changed_tensors},
            {"bytes", report.changed_bytes},
            {"blocked_ms", milliseconds(receipt.blocked)}};
  line.update(more);
  const std::string from = more.contains("file") ? "  " + printable(more["file"].get<std::string>()) : "";
  return program_.out.emit(line, format("{}@{}  {} of {} tensors changed, {}, blocked {:.2f} ms{}", model_,
                                        report.version, report.changed_tensors, report.tensors,
                                        human_bytes(report.changed_bytes), milliseconds(receipt.blocked), from));
}

}  // namespace freshet::cli
