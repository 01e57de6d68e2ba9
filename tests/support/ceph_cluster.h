// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A Ceph cluster of a test's own: one monitor and one object store on loopback, in a folder of its own.
/// Real daemons of Debian's packages; it takes some seconds to start. Its users have keys: "admin" may do everything,
/// "reader" reads the pool, and the cluster does not know the key of "stranger".

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_folder.h"

namespace freshet {

class CephCluster {
 public:
  static constexpr const char* kPool = "freshet";

  enum class Medium : std::uint8_t { memory, disk };

  explicit CephCluster(Medium medium = Medium::memory) : medium_(medium) { start(); }

  /// Non-empty when there is none on this machine.
  const std::string& why_not() const { return why_not_; }
  std::string conf_file() const { return folder_ / "ceph.conf"; }
  std::string address(const std::string& repository, const std::string& user = "admin") const {
    return "rados://" + user + "@" + kPool + "/" + repository + "?conf=" + conf_file();
  }

  /// The object store stops answering, and goes on.
  void stop() { store_->stop(); }
  void go_on() { store_->go_on(); }

 private:
  void start() {
    for (const char* program : {"ceph-mon", "ceph-osd", "ceph", "ceph-authtool", "monmaptool"}) {
      if (::access((std::string("/usr/bin/") + program).c_str(), X_OK) == 0) continue;
      why_not_ = std::string("there is no ") + program + " (Debian packages ceph-mon, ceph-osd and ceph-common)";
      return;
    }
    const std::string id = "5f1c7a54-9d1e-4b7e-8f57-1f0a5b1d3c21";
    const std::string store_id = "0b9c31d4-2a6f-4a3a-9a54-6f8f6c1d7e55";
    const std::string monitor = "v2:127.0.0.1:" + std::to_string(free_port());
    write_conf(id, monitor);
    const std::string map = folder_ / "monmap";
    const std::vector<std::vector<std::string>> steps = {
        {"/bin/mkdir", folder_ / "mon", folder_ / "osd", folder_ / "run"},
        {"/usr/bin/monmaptool", "--create", "--addv", "a", "[" + monitor + "]", "--fsid", id, map},
        {"/usr/bin/ceph-authtool", "-C", keyring()},
        key_of("mon.", "mon", "allow *", "osd", "allow *"),
        key_of("osd.0", "mon", "allow profile osd", "osd", "allow *"),
        key_of("client.admin", "mon", "allow *", "osd", "allow *"),
        key_of("client.reader", "mon", "allow r", "osd", std::string("allow r pool=") + kPool),
        {"/usr/bin/ceph-mon", "-c", conf_file(), "--mkfs", "-i", "a", "--monmap", map, "--keyring", keyring()},
        key_of("client.stranger", "mon", "allow *", "osd", "allow *"),
    };
    for (const auto& step : steps) {
      if (!run(step)) return;
    }
    monitor_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{"/usr/bin/ceph-mon", "-c", conf_file(), "-f", "-i", "a"});
    if (!run({"/usr/bin/ceph", "-c", conf_file(), "--connect-timeout", "30", "osd", "new", store_id})) return;
    if (!run({"/usr/bin/ceph-osd", "-c", conf_file(), "-i", "0", "--mkfs", "--osd-uuid", store_id})) return;
    store_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{"/usr/bin/ceph-osd", "-c", conf_file(), "-f", "-i", "0"});
    run({"/usr/bin/ceph", "-c", conf_file(), "--connect-timeout", "30", "osd", "pool", "create", kPool, "8"});
  }

  std::string keyring() const { return folder_ / "keyring"; }
  /// What makes a user's key.
  std::vector<std::string> key_of(const std::string& user, const std::string& service, const std::string& rights,
                                  const std::string& other, const std::string& other_rights) const {
    return {"/usr/bin/ceph-authtool",
            keyring(),
            "--gen-key",
            "-n",
            user,
            "--cap",
            service,
            rights,
            "--cap",
            other,
            other_rights};
  }

  void write_conf(const std::string& id, const std::string& monitor) const {
    std::ofstream(conf_file()) << "[global]\nfsid = " << id << "\nmon host = " << monitor
                               << "\npublic addr = 127.0.0.1\ncluster addr = 127.0.0.1\n"
                                  "auth cluster required = cephx\nauth service required = cephx\n"
                                  "auth client required = cephx\nosd pool default size = 1\n"
                                  "osd pool default min size = 1\nosd crush chooseleaf type = 0\n"
                                  "osd pool default pg autoscale mode = off\nmon allow pool size one = true\n"
                               << (medium_ == Medium::disk
                                       ? "osd objectstore = bluestore\nbluestore block size = 32212254720\n"
                                         "osd memory target = 1073741824\n"
                                       : "osd objectstore = memstore\nmemstore device bytes = 1073741824\n")
                               << "keyring = " << keyring() << "\nmon data = " << folder_ / "mon"
                               << "\nosd data = " << folder_ / "osd"
                               << "\nrun dir = " << folder_ / "run"
                               << "\nlog file = " << folder_ / "$name.log"
                               << "\nmon cluster log file = " << folder_ / "cluster.log"
                               << "\nadmin socket = " << folder_ / "run/$name.$pid.asok\n";
  }

  bool run(const std::vector<std::string>& words) {
    std::vector<std::string> quiet = {"/bin/sh", "-c", "exec timeout 60 \"$@\" 2>&1", "sh"};
    quiet.insert(quiet.end(), words.begin(), words.end());
    ChildProcess process(std::move(quiet));
    std::string last;
    while (const auto line = process.line()) last = *line;
    if (process.end(/*signal: none*/ 0) == 0) return true;
    why_not_ = words.front() + " failed: " + last;
    return false;
  }

  const Medium medium_;
  const TemporaryFolder folder_;
  std::string why_not_;
  std::unique_ptr<ChildProcess> monitor_;
  std::unique_ptr<ChildProcess> store_;
};

}  // namespace freshet
