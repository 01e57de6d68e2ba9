// SPDX-License-Identifier: Apache-2.0
#include "tests/bindings/cli/support/durable.h"
#include "tests/support/this_build.h"

namespace freshet::cli_test {

Environment SyncJournal::environment() const {
  return {{"LD_PRELOAD", test::built(FRESHET_SYNC_JOURNAL_LIBRARY)},
          {"FRESHET_SYNC_JOURNAL", path_},
          {"ASAN_OPTIONS", asan_options()}};
}

}  // namespace freshet::cli_test
