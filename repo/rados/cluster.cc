// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/cluster.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"

namespace freshet::rados {
namespace {

/// Seconds. So that an opening that finds no cluster ends within ten.
constexpr const char* kConnectTimeout = "8";
/// librados makes a call wait for others beyond these, whatever its deadline is. Callers have their own limits.
constexpr const char* kBytesInFlight = "4294967296";
constexpr const char* kOperationsInFlight = "65536";
/// Times 3 s: the pause between two looks for a monitor, which otherwise grows to half a minute while a cluster is
/// away.
constexpr const char* kLongestHunt = "1";
/// Seconds. librados asks a monitor for the cluster's present map when an operation has waited for so long, and looks
/// for such operations so often. By its own times, 10 and 5, a client whose store came back at another address may find
/// it 15 s after others did.
constexpr const char* kSlowOperation = "1";
constexpr const char* kSlowOperationLook = "1";

Code code_of(int number) {
  switch (number) {
    case ENOENT: return Code::not_found;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM: return Code::out_of_space;
    case EACCES:
    case EPERM:
    case EROFS: return Code::failed_precondition;
    case EOPNOTSUPP: return Code::unsupported;
    case EINVAL:
    case ENAMETOOLONG: return Code::invalid_argument;
    case ETIMEDOUT:
    case ECANCELED:
    case EBUSY:
    case ESHUTDOWN:
    case ECONNREFUSED:
    case EAGAIN: return Code::unavailable;
    default: return Code::io_error;
  }
}

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::connect(const RadosAddress& address) {
  FRESHET_ASSIGN(const Library* const loaded, library());
  std::unique_ptr<Cluster> cluster(new Cluster(*loaded, address));
  FRESHET_TRY(cluster->open());
  return cluster;
}

Cluster::~Cluster() {
  if (io_ != nullptr) rados_.rados_ioctx_destroy(io_);
  if (cluster_ != nullptr) rados_.rados_shutdown(cluster_);
}

std::string Cluster::place() const { return format("rados://{}/{}", address_.pool, address_.repository); }

Error Cluster::error_of(int answer, std::string_view what) const {
  const int number = answer < 0 ? -answer : answer;
  std::string reason = std::generic_category().message(number);
  if (number == EACCES || number == EPERM) {
    reason = format(
        "{} has no right to do this in pool {}; a writer needs the OSD capability 'allow rwx pool={}', a reader "
        "'allow r pool={}'",
        user(), address_.pool, address_.pool, address_.pool);
  } else if (number == EOPNOTSUPP) {
    reason = format("pool {} keeps no tables; use a replicated pool", address_.pool);
  } else if (number == ENOSPC || number == EDQUOT) {
    reason = "the cluster or the pool is full";
  }
  return Error(code_of(number), format("{}: {}: {}", place(), what, reason));
}

Status Cluster::open() {
  const auto check = [&](int answer, std::string_view what) -> Status {
    if (answer < 0) return fail(error_of(answer, what));
    return {};
  };
  const auto refuse = [&](Code code, std::string_view why) { return fail(code, format("{}: {}", place(), why)); };
  FRESHET_TRY(check(rados_.rados_create(&cluster_, address_.user.empty() ? nullptr : address_.user.c_str()), "begin"));
  const char* const file = address_.conf_file.empty() ? nullptr : address_.conf_file.c_str();
  if (const int answer = rados_.rados_conf_read_file(cluster_, file); answer < 0) {
    return refuse(Code::failed_precondition, file != nullptr
                                                 ? format("{} cannot be read as a ceph.conf", address_.conf_file)
                                                 : "there is no ceph.conf; CEPH_CONF or ?conf=FILE names it");
  }
  FRESHET_TRY(check(rados_.rados_conf_parse_env(cluster_, nullptr), "read CEPH_ARGS"));
  // The errors of librados come with its answers, too.
  for (const auto& [option, value] :
       {std::pair("client_mount_timeout", kConnectTimeout), std::pair("rados_mon_op_timeout", kConnectTimeout),
        std::pair("objecter_inflight_op_bytes", kBytesInFlight),
        std::pair("objecter_inflight_ops", kOperationsInFlight),
        std::pair("mon_client_hunt_interval_max_multiple", kLongestHunt), std::pair("objecter_timeout", kSlowOperation),
        std::pair("objecter_tick_interval", kSlowOperationLook), std::pair("log_to_stderr", "false"),
        std::pair("err_to_stderr", "false")}) {
    FRESHET_TRY(check(rados_.rados_conf_set(cluster_, option, value), option));
  }
  const int connected = rados_.rados_connect(cluster_);
  if (connected == -ENOENT) {
    return refuse(Code::failed_precondition,
                  format("there is no keyring for {}; ceph.conf names the keyring's file", user()));
  }
  if (connected == -EACCES || connected == -EPERM) {
    return refuse(Code::failed_precondition,
                  format("the cluster refuses {}: the keyring has another key, or none of this user", user()));
  }
  if (connected == -ETIMEDOUT) {
    return refuse(Code::unavailable, format("no monitor of the cluster answered within {} s", kConnectTimeout));
  }
  FRESHET_TRY(check(connected, "connect"));
  const int opened = rados_.rados_ioctx_create(cluster_, address_.pool.c_str(), &io_);
  if (opened == -ENOENT) {
    return refuse(Code::failed_precondition, format("the cluster has no pool {}; make it first", address_.pool));
  }
  FRESHET_TRY(check(opened, "open the pool"));
  rados_.rados_ioctx_set_namespace(io_, address_.repository.c_str());
  return {};
}

Operation::Operation(const Cluster& cluster) : cluster_(cluster) {
  cluster_.rados().rados_aio_create_completion2(this, &Operation::on_complete, &completion_);
}

Operation::~Operation() { cluster_.rados().rados_aio_release(completion_); }

void Operation::on_complete(rados_completion_t, void* self) {
  auto* const operation = static_cast<Operation*>(self);
  const MutexLock lock(operation->mutex_);
  operation->is_answered_ = true;
  operation->answered_.notify_all();
}

void Operation::end() {
  const bool runs = sent_ && *sent_ >= 0 && !is_over_;
  if (!runs) return;
  bool is_answered = false;
  {
    const MutexLock lock(mutex_);
    is_answered = is_answered_;
  }
  // It may be answered meanwhile; then this does nothing.
  if (!is_answered) cluster_.rados().rados_aio_cancel(cluster_.io(), completion_);
  cluster_.rados().rados_aio_wait_for_complete_and_cb(completion_);
  is_over_ = true;
}

Result<int> Operation::answer(Time deadline) {
  if (*sent_ < 0) return *sent_;
  Status waited;
  {
    const MutexLock lock(mutex_);
    while (!is_answered_ && waited) {
      if (system_clock().now() >= deadline) {
        waited = fail(Code::timed_out, "the cluster did not answer in time");
        break;
      }
      answered_.wait_until(mutex_, Interruption::next_look(deadline));
      if (is_answered_) break;
      mutex_.unlock();
      waited = Interruption::check();
      mutex_.lock();
    }
  }
  end();
  const int answered = cluster_.rados().rados_aio_get_return_value(completion_);
  if (!waited && answered == -ECANCELED) return fail(std::move(waited).error());
  return answered;
}

WriteOperation::~WriteOperation() {
  end();
  cluster_.rados().rados_release_write_op(op_);
}

void WriteOperation::send(const std::string& object) {
  // A full pool refuses, and does not make its clients wait.
  on_sent(cluster_.rados().rados_aio_write_op_operate(op_, cluster_.io(), completion(), object.c_str(), nullptr,
                                                      LIBRADOS_OPERATION_FULL_TRY));
}

ReadOperation::~ReadOperation() {
  end();
  cluster_.rados().rados_release_read_op(op_);
}

void ReadOperation::send(const std::string& object) {
  on_sent(cluster_.rados().rados_aio_read_op_operate(op_, cluster_.io(), completion(), object.c_str(), 0));
}

}  // namespace freshet::rados
