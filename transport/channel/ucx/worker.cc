// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/worker.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/env.h"
#include "core/base/format.h"

namespace freshet::channel::ucx {

Result<std::unique_ptr<Worker>> Worker::open(const Options& options) {
  FRESHET_ASSIGN(const Library* library, load_library());
  std::unique_ptr<Worker> worker(new Worker(*library));
  FRESHET_TRY(worker->start(options));
  return worker;
}

Status Worker::start(const Options& options) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx_.ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return fail(error_from(ucx_, status, "read UCX's configuration"));
  }
  prefer(config, options);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // Memory is registered from other threads.
  const ucs_status_t opened = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.ucp_config_release(config);
  if (opened != UCS_OK) return fail(error_from(ucx_, opened, "start UCX (check UCX_TLS and UCX_NET_DEVICES)"));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const ucs_status_t status = ucx_.ucp_worker_create(context_, &worker_params, &worker_); status != UCS_OK) {
    return fail(error_from(ucx_, status, "make a UCX worker"));
  }
  if (const ucs_status_t status = ucx_.ucp_worker_get_efd(worker_, &descriptor_); status != UCS_OK) {
    return fail(error_from(ucx_, status, "get a UCX worker's descriptor"));
  }
  return {};
}

void Worker::prefer(ucp_config_t* config, const Options& options) {
  const auto set = [&](const std::string& variable, const std::string& key, const char* value) {
    if (!system_env().variable(variable)) ucx_.ucp_config_modify(config, key.c_str(), value);
  };
  // UCX would listen on every device's address otherwise, whatever address its listener has.
  if (options.loopback) set("UCX_NET_DEVICES", "NET_DEVICES", "lo");
  // Before 1.17, a transport's options are named without its prefix here.
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucx_.ucp_get_version(&major, &minor, &release);
  const std::string prefix = major > 1 || minor >= 17 ? "TCP_" : "";
  // Over TCP, two of UCX's ways to send without a copy can end this process by an assertion when the receiver goes away
  // in the middle: a put that is acknowledged after all, and a send that fails, whose completion is then called twice
  // (uct_tcp_ep_sendv, from 1.13 to 1.22). What goes as a `short` message has no completion: the socket takes it from
  // where it lies, and UCX copies only what the socket has no room for, into a buffer that takes a whole chunk.
  set("UCX_TCP_PUT_ENABLE", prefix + "PUT_ENABLE", "n");
  if (options.rendezvous) return;
  set("UCX_ZCOPY_THRESH", "ZCOPY_THRESH", "inf");
  // No larger than the buffer for receiving, which the user may have made small.
  if (!system_env().variable("UCX_TCP_RX_SEG_SIZE")) set("UCX_TCP_TX_SEG_SIZE", prefix + "TX_SEG_SIZE", "64K");
}

Worker::~Worker() {
  for (const Incoming& message : incoming_) drop(message);
  if (worker_ != nullptr) ucx_.ucp_worker_destroy(worker_);
  {
    const MutexLock lock(mutex_);
    for (const auto& [at, memory] : registered_) ucx_.ucp_mem_unmap(context_, memory.handle);
  }
  if (context_ != nullptr) ucx_.ucp_cleanup(context_);
}

Result<bool> Worker::arm() {
  const ucs_status_t status = ucx_.ucp_worker_arm(worker_);
  if (status == UCS_OK) return true;
  if (status == UCS_ERR_BUSY) return false;
  return fail(error_from(ucx_, status, "arm a UCX worker"));
}

Status Worker::take_messages(MessageId id, std::function<void(const Incoming&)> handle) {
  handlers_.push_back(std::make_unique<Handler>(Handler{.worker = this, .id = id, .handle = std::move(handle)}));
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = static_cast<unsigned>(id);
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = &Worker::on_message;
  param.arg = handlers_.back().get();
  if (const ucs_status_t status = ucx_.ucp_worker_set_am_recv_handler(worker_, &param); status != UCS_OK) {
    return fail(error_from(ucx_, status, "listen for UCX active messages"));
  }
  return {};
}

ucs_status_t Worker::on_message(void* argument, const void* header, std::size_t header_length, void* data,
                                std::size_t length, const ucp_am_recv_param_t* param) {
  const Handler& handler = *static_cast<Handler*>(argument);
  if (header_length > kHeaderBytesMax) return UCS_OK;  // None of ours is so long.
  Incoming message{.id = handler.id, .header_length = header_length, .length = length};
  const auto* bytes = static_cast<const std::byte*>(header);
  std::copy(bytes, bytes + header_length, message.header_bytes.begin());
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    message.rendezvous = true;
    message.descriptor = data;
    handler.worker->incoming_.push_back(message);
    return UCS_INPROGRESS;
  }
  message.payload = Bytes(static_cast<const std::byte*>(data), length);
  handler.handle(message);
  return UCS_OK;
}

void Worker::drop(const Incoming& message) {
  if (message.descriptor != nullptr) ucx_.ucp_am_data_release(worker_, message.descriptor);
}

ucs_status_ptr_t Worker::receive(const Incoming& message, MutableBytes to, ucp_am_recv_data_nbx_callback_t done,
                                 void* argument) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = done;
  param.user_data = argument;
  return ucx_.ucp_am_recv_data_nbx(worker_, message.descriptor, to.data(), to.size(), &param);
}

ucs_status_ptr_t Worker::close_by_force(ucp_ep_h endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t closing = ucx_.ucp_ep_close_nbx(endpoint, &param);
  return UCS_PTR_IS_PTR(closing) ? closing : nullptr;
}

bool Worker::closed(ucs_status_ptr_t closing) {
  if (closing == nullptr) return true;
  if (ucx_.ucp_request_check_status(closing) == UCS_INPROGRESS) return false;
  ucx_.ucp_request_free(closing);
  return true;
}

Status Worker::register_memory(Bytes memory) {
  if (memory.empty()) return {};
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = const_cast<std::byte*>(memory.data());
  params.length = memory.size();
  // Under the lock, though pinning takes a while: nobody waits for it but others who register.
  const MutexLock lock(mutex_);
  if (registered_.contains(memory.data())) return {};
  ucp_mem_h mapped = nullptr;
  if (const ucs_status_t status = ucx_.ucp_mem_map(context_, &params, &mapped); status != UCS_OK) {
    return fail(error_from(ucx_, status, format("register {} bytes of memory with UCX", memory.size())));
  }
  registered_[memory.data()] = {.handle = mapped, .bytes = memory.size()};
  return {};
}

void Worker::forget_memory(Bytes memory) {
  const MutexLock lock(mutex_);
  const auto known = registered_.find(memory.data());
  if (known == registered_.end()) return;
  ucx_.ucp_mem_unmap(context_, known->second.handle);
  registered_.erase(known);
}

std::uint64_t Worker::bytes_registered() const {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [at, memory] : registered_) bytes += memory.bytes;
  return bytes;
}

}  // namespace freshet::channel::ucx
