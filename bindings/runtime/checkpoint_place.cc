// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/checkpoint_place.h"

#include <memory>

#include "bindings/runtime/bucket_place.h"
#include "bindings/runtime/repository_folder.h"

namespace freshet {

void set_external(Checkpointer::Options& options, const std::string& place, const std::string& server_key) {
  if (place.empty()) return;
  SecurityOptions security{.open_loopback = options.security.open_loopback};
  security.server_key = server_key.empty() && options.ranks == 1 ? options.security.server_key : server_key;
  if (!security.server_key.empty()) security.key_file = options.security.key_file;
  options.external_is_shared = is_repository_address(place) && !is_store_place(place);
  options.external = [place, security]() -> Result<std::shared_ptr<Repository>> {
    FRESHET_ASSIGN(OpenedRepository opened,
                   open_repository(place, {.access = RepositoryAccess::create, .security = security}));
    return std::shared_ptr<Repository>(std::move(opened));
  };
}

}  // namespace freshet
