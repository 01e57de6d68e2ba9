// SPDX-License-Identifier: Apache-2.0
#include "core/base/result.h"

#include <cerrno>

#include "core/base/format.h"

namespace freshet {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::invalid_argument: return "invalid_argument";
    case Code::not_found: return "not_found";
    case Code::already_exists: return "already_exists";
    case Code::failed_precondition: return "failed_precondition";
    case Code::corrupt: return "corrupt";
    case Code::unavailable: return "unavailable";
    case Code::timed_out: return "timed_out";
    case Code::out_of_space: return "out_of_space";
    case Code::cancelled: return "cancelled";
    case Code::unsupported: return "unsupported";
    case Code::io_error: return "io_error";
  }
  return "unknown";
}

Error Error::with_context(std::string_view context) && { return Error(code_, format("{}: {}", context, message_)); }

tl::unexpected<Error> fail_errno(int errno_value, std::string_view what) {
  Code code = Code::io_error;
  switch (errno_value) {
    case ENOENT: code = Code::not_found; break;
    case EEXIST: code = Code::already_exists; break;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE: code = Code::out_of_space; break;
    case ETIMEDOUT: code = Code::timed_out; break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN: code = Code::unavailable; break;
    case EINVAL: code = Code::invalid_argument; break;
    default: break;
  }
  return fail(code, format("{}: {}", what, std::generic_category().message(errno_value)));
}

}  // namespace freshet
