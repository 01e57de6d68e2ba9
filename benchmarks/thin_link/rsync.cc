// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/thin_link/rsync.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr const char* kPort = "8730";

Status read_whole(const std::string& path, std::vector<std::byte>& into) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail_errno(errno, "open " + path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail_errno(errno, "stat " + path);
  into.resize(static_cast<std::size_t>(status.st_size));
  for (std::size_t at = 0; at < into.size();) {
    const ssize_t n = ::read(file.get(), into.data() + at, into.size() - at);
    if (n <= 0) return fail_errno(errno, "read " + path);
    at += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Rsync>> Rsync::start(const lab::Host& trainer, const lab::Host& server,
                                            const std::string& trainer_address) {
  std::unique_ptr<Rsync> rsync(new Rsync(trainer, server));
  rsync->folder_ = "/dev/shm/freshet-rsync-XXXXXX";
  if (::mkdtemp(rsync->folder_.data()) == nullptr) return fail_errno(errno, "make a folder in /dev/shm");
  const std::string& folder = rsync->folder_;
  for (const char* side : {"/trainer", "/server"}) ::mkdir((folder + side).c_str(), 0755);
  std::ofstream(folder + "/conf") << "[models]\npath = " << folder << "/trainer\nuse chroot = no\nread only = yes\n"
                                  << "uid = root\ngid = root\nreverse lookup = no\n";
  FRESHET_ASSIGN(rsync->daemon_, start_in({.space = &trainer.space(), .environment = {}},
                                          {"rsync", "--daemon", "--no-detach", "--config=" + folder + "/conf",
                                           std::string("--port=") + kPort, "--address=" + trainer_address}));
  rsync->url_ = format("rsync://{}:{}/models/", trainer_address, kPort);
  Status listed = fail(Code::unavailable, "not tried");
  for (int i = 0; i < 50 && !listed; ++i) {
    listed = server.space().command({"rsync", rsync->url_});
    if (!listed) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (!listed) return fail(Code::unavailable, "rsync: " + listed.error().message());
  return rsync;
}

Rsync::~Rsync() {
  if (daemon_) ::kill(daemon_->pid(), SIGTERM);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Result<double> Rsync::update(PublisherPeer& publisher, bool whole_file) {
  const std::int64_t start_ns = monotonic_ns();
  FRESHET_TRY(publisher.ask(format("save {}/trainer/model.safetensors", folder_)));
  FRESHET_TRY(server_.space().command({"rsync", "--ignore-times", whole_file ? "--whole-file" : "--no-whole-file",
                                       url_ + "model.safetensors", folder_ + "/server/"}));
  FRESHET_TRY(read_whole(folder_ + "/server/model.safetensors", read_));
  return static_cast<double>(monotonic_ns() - start_ns) / 1e6;
}

}  // namespace freshet::benchmarks
