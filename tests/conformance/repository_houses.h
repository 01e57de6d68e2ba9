// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kinds of repositories that a test can make from backends.

#include <utility>

#include "core/base/format.h"
#include "repo/cluster/cluster_repository.h"
#include "repo/cluster/placement/membership.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "tests/conformance/repository_conformance.h"
#include "tests/support/temporary_folder.h"

namespace freshet {

using MakeBackend = std::function<std::unique_ptr<Backend>(const std::string& folder)>;

/// One that is here.
class LocalHouse final : public RepositoryHouse {
 public:
  explicit LocalHouse(const MakeBackend& make) : repository_(open_or_die(make(folder_ / "store"))) {}
  Repository& repository() override { return *repository_; }
  ProviderRepository* provider() override { return repository_.get(); }

 private:
  const TemporaryFolder folder_;
  const std::unique_ptr<ProviderRepository> repository_;
};

/// One behind a server on a socket.
class RemoteHouse final : public RepositoryHouse {
 public:
  RemoteHouse() {
    auto server = RepositoryServer::open(*local_, {.address = "ipc://" + folder_.path() + "/socket"});
    FRESHET_CHECK(server.has_value());
    server_ = std::move(*server);
    auto remote = connect_repository(server_->address());
    FRESHET_CHECK(remote.has_value());
    remote_ = std::move(*remote);
  }
  Repository& repository() override { return *remote_; }
  ProviderRepository* provider() override { return remote_.get(); }

 private:
  const TemporaryFolder folder_;
  const std::unique_ptr<ProviderRepository> local_ = open_or_die(make_memory_backend());
  std::unique_ptr<RepositoryServer> server_;
  std::unique_ptr<ProviderRepository> remote_;
};

/// Three providers, each behind a server of its own.
class ClusterHouse final : public RepositoryHouse {
 public:
  ClusterHouse() {
    std::vector<Provider> list;
    for (int i = 0; i < 3; ++i) {
      const Provider provider{.id = format("p{}", i), .address = format("ipc://{}/p{}", folder_.path(), i)};
      stores_.push_back(open_or_die(make_memory_backend()));
      auto server = RepositoryServer::open(*stores_.back(), {.address = provider.address});
      FRESHET_CHECK(server.has_value());
      servers_.push_back(std::move(*server));
      list.push_back(provider);
    }
    const cluster::Connect connect = [](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
      FRESHET_ASSIGN(std::unique_ptr<ProviderRepository> repository, connect_repository(provider.address));
      return std::shared_ptr<ProviderRepository>(std::move(repository));
    };
    const auto placement = cluster::form(list, connect);
    FRESHET_CHECK(placement.has_value());
    auto opened = ClusterRepository::open(*placement, connect);
    FRESHET_CHECK(opened.has_value());
    repository_ = std::move(*opened);
  }
  Repository& repository() override { return *repository_; }

 private:
  const TemporaryFolder folder_;
  std::vector<std::unique_ptr<ProviderRepository>> stores_;
  std::vector<std::unique_ptr<RepositoryServer>> servers_;
  std::unique_ptr<Repository> repository_;
};

}  // namespace freshet
