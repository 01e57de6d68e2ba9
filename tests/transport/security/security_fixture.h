// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Keys and allow-lists in a folder of the test's own.

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/transport/model_fixture.h"
#include "transport/security/keys.h"

namespace freshet::test {

class SecurityTest : public StreamTest {
 protected:
  std::string path_of(const std::string& name) const { return keys_.path() + "/" + name; }

  /// Makes NAME and NAME.pub, and returns NAME's path.
  std::string make_keys(const std::string& name) const {
    const auto keys = KeyPair::generate();
    EXPECT_TRUE(keys) << keys.error().message();
    const Status written = keys->write(path_of(name));
    EXPECT_TRUE(written) << written.error().message();
    return path_of(name);
  }
  static std::string public_text(const std::string& key_file) { return read_public_key(key_file + ".pub")->text(); }

  std::string write_file(const std::string& name, const std::string& text, mode_t mode = 0644) const {
    std::ofstream(path_of(name)) << text;
    ::chmod(path_of(name).c_str(), mode);
    return path_of(name);
  }

  /// A publisher that admits the keys of `allow`'s lines, with keys of its own in `server_`.
  PublisherOptions guarded_publisher(const std::string& listen, const std::string& allow) {
    if (server_.empty()) server_ = make_keys("trainer");
    PublisherOptions options = publisher_options();
    options.hub_options.listen = listen;
    options.hub_options.security = {.key_file = server_, .allow_file = write_file("allow", allow)};
    return options;
  }
  SubscriberOptions guarded_subscriber(const std::string& at, const std::string& key_file) const {
    SubscriberOptions options{.model = "demo", .at = {at}, .directory = folder_.path()};
    options.security = {.key_file = key_file, .server_key = server_ + ".pub"};
    return options;
  }

  TemporaryFolder keys_;
  std::string server_;
};

}  // namespace freshet::test
