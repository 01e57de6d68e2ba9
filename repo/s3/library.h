// SPDX-License-Identifier: Apache-2.0
#pragma once

/// libcurl. The first opened bucket loads it. It is not linked: programs that never name a bucket do not carry it.
/// Private to this folder.

#include <curl/curl.h>

#include "core/base/result.h"

namespace freshet::s3 {

#define FRESHET_CURL_FUNCTIONS(each)                                                                                \
  each(curl_global_init) each(curl_easy_init) each(curl_easy_cleanup) each(curl_easy_reset) each(curl_easy_setopt)  \
      each(curl_easy_getinfo) each(curl_easy_strerror) each(curl_slist_append) each(curl_slist_free_all)            \
          each(curl_multi_init) each(curl_multi_cleanup) each(curl_multi_add_handle) each(curl_multi_remove_handle) \
              each(curl_multi_perform) each(curl_multi_poll) each(curl_multi_info_read) each(curl_multi_strerror)   \
                  each(curl_getdate)

struct CurlLibrary {
#define FRESHET_CURL_MEMBER(name) decltype(&::name) name = nullptr;
  FRESHET_CURL_FUNCTIONS(FRESHET_CURL_MEMBER)
#undef FRESHET_CURL_MEMBER
};

/// The library, loaded once. unavailable: this machine has none.
Result<const CurlLibrary*> curl_library();

}  // namespace freshet::s3
