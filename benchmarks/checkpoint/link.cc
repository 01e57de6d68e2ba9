// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "benchmarks/checkpoint/disk.h"
#include "benchmarks/checkpoint/job.h"
#include "benchmarks/checkpoint/watch.h"
#include "benchmarks/stream/route.h"
#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::uint32_t kLinkHosts = 3;
/// So slow that two cores are not what is measured.
constexpr std::uint64_t kBitsPerSecond = 400'000'000;
constexpr std::uint16_t kPort = 7500;
constexpr std::size_t kAtOnce = std::size_t{1} << 20;

sockaddr_in address_of(const std::string& host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

Result<FileDescriptor> listen_at(const std::string& host) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr_in address = address_of(host);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1) != 0) {
    return fail_errno(errno, format("listen at {}", host));
  }
  return socket;
}

Status send_to(const std::string& host, std::uint64_t bytes) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(host);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail_errno(errno, format("connect to {}", host));
  }
  const std::vector<std::byte> some(kAtOnce);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket.get(), some.data(), std::min<std::uint64_t>(bytes, kAtOnce), MSG_NOSIGNAL);
    if (sent < 0) return fail_errno(errno, format("send to {}", host));
    bytes -= static_cast<std::uint64_t>(sent);
  }
  return {};
}

Status receive_all(const FileDescriptor& listener) {
  const FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return fail_errno(errno, "accept");
  std::vector<std::byte> some(kAtOnce);
  for (;;) {
    const ssize_t got = ::recv(socket.get(), some.data(), some.size(), 0);
    if (got < 0) return fail_errno(errno, "receive");
    if (got == 0) return {};
  }
}

/// The first `senders` hosts each send so many bytes to the next one, at once.
Result<double> stream_ms(lab::Network& network, std::size_t senders, std::uint64_t bytes) {
  const auto host = [&](std::size_t index) -> lab::Host& { return network.host(format("host{}", index % kLinkHosts)); };
  std::vector<FileDescriptor> listeners(senders);
  for (std::size_t i = 0; i < senders; ++i) {
    const auto listen = [&]() -> Status {
      FRESHET_ASSIGN(listeners[i], listen_at(host(i + 1).address()));
      return {};
    };
    FRESHET_TRY(host(i + 1).space().run(listen));
  }
  std::vector<Status> ended(2 * senders);
  std::vector<std::thread> threads;
  const Watch watch;
  for (std::size_t i = 0; i < senders; ++i) {
    threads.emplace_back(
        [&, i] { ended[2 * i] = host(i).space().run([&] { return send_to(host(i + 1).address(), bytes); }); });
    threads.emplace_back([&, i] { ended[2 * i + 1] = receive_all(listeners[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  const double ms = watch.ms();
  for (const Status& status : ended) FRESHET_TRY(status);
  return ms;
}

}  // namespace

Status measure_link(const CheckpointOptions& options, Report& report) {
  if (!lab::why_no_lab().empty()) return fail(Code::unavailable, "not measured: " + lab::why_no_lab());
  const std::uint64_t share = options.quick ? 8'000'000 : 64'000'000;
  const std::string name = options.quick ? "link_400Mbit_8MB" : "link_400Mbit_64MB";
  FRESHET_ASSIGN(const auto network, lab::Network::create({"host0", "host1", "host2"}));
  FRESHET_ASSIGN(const auto folder, MadeFolder::in(options.memory_folder()));
  FRESHET_ASSIGN(const KeyFolder keys, KeyFolder::create(folder.path()));
  JobOptions job_options{.ranks = kLinkHosts,
                         .folder = folder.path(),
                         .bytes = share,
                         .split = true,
                         .group = {.kind = levels::GroupScheme::Kind::partner},
                         .security = keys.server(true)};  // One key for all ranks.
  for (std::uint32_t rank = 0; rank < kLinkHosts; ++rank) {
    lab::Host& host = network->host(format("host{}", rank));
    FRESHET_TRY(host.set_rate(kBitsPerSecond));
    job_options.hosts.push_back(&host);
  }
  Job job(job_options);
  Samples local;
  Samples group;
  Samples streams;
  Samples lost;
  Samples stream;
  for (int i = 0; i <= options.repetitions(); ++i) {
    FRESHET_ASSIGN(const double all_ms, stream_ms(*network, kLinkHosts, share));
    FRESHET_ASSIGN(const double one_ms, stream_ms(*network, 1, share));
    double group_ms = 0;
    const Job::Life life = [&](std::uint32_t rank, Checkpointer& checkpointer, State& state) -> Status {
      const auto writable = state.writable();
      FRESHET_ASSIGN(const auto restored, checkpointer.restore(writable));
      const std::uint64_t step = restored ? restored->step + 1 : 1;
      state.write(step);
      const auto views = state.views();
      FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(step, views));
      FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::local, kPatience));
      const Watch watch;
      FRESHET_TRY(checkpointer.wait(captured.version, CheckpointLevel::group, kPatience));
      if (rank == 0) group_ms = watch.ms();
      return {};
    };
    FRESHET_TRY(job.run(life));
    FRESHET_ASSIGN([[maybe_unused]] const double whole_ms, job.restore_ms());
    std::filesystem::remove_all(job.local(kLinkHosts - 1));
    FRESHET_ASSIGN(const double lost_ms, job.restore_ms());
    if (i == 0) continue;  // It warms up.
    streams.add(all_ms);
    stream.add(one_ms);
    group.add(group_ms);
    lost.add(lost_ms);
  }
  report.add_row(name, "tcp_each_to_the_next", "ms", streams);
  report.add_row(name, "partner_group", "ms", group);
  report.add_row(name, "tcp_one_share", "ms", stream);
  report.add_row(name, "restore_one_host_lost", "ms", lost);
  report.set_ratio("group_vs_link", streams.median() / group.median());
  report.set_ratio("lost_host_vs_link", stream.median() / lost.median());
  return {};
}

}  // namespace freshet::benchmarks
