// SPDX-License-Identifier: Apache-2.0
/// Raw UCX active messages, one per tensor, over whatever transports UCX chooses on one host.

#include "benchmarks/update_latency/subject.h"

#ifdef FRESHET_HAVE_UCX

#include <ucp/api/ucp.h>

#include <cstring>
#include <iostream>

#include "benchmarks/common/child.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr unsigned kMessage = 1;

tl::unexpected<Error> fail_ucx(ucs_status_t status, std::string_view what) {
  return fail(Code::unavailable, format("{}: {}", what, ucs_status_string(status)));
}

/// A context with one worker.
class Worker {
 public:
  static Result<std::unique_ptr<Worker>> open() {
    std::unique_ptr<Worker> opened(new Worker());
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_AM;
    if (const auto status = ucp_init(&parameters, nullptr, &opened->context_); status != UCS_OK) {
      return fail_ucx(status, "ucp_init");
    }
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    if (const auto status = ucp_worker_create(opened->context_, &worker, &opened->worker_); status != UCS_OK) {
      return fail_ucx(status, "ucp_worker_create");
    }
    return opened;
  }
  ~Worker() {
    if (endpoint_ != nullptr) wait(ucp_ep_close_nb(endpoint_, UCP_EP_CLOSE_MODE_FORCE));
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucp_cleanup(context_);
  }

  ucp_worker_h get() const { return worker_; }
  void progress() { ucp_worker_progress(worker_); }

  std::string address() const {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    if (ucp_worker_get_address(worker_, &address, &bytes) != UCS_OK) return "";
    std::string hex;
    for (std::size_t i = 0; i < bytes; ++i) hex += format("{:02x}", reinterpret_cast<const unsigned char*>(address)[i]);
    ucp_worker_release_address(worker_, address);
    return hex;
  }

  Status connect(const std::string& hex) {
    std::string address;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      address.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
    if (const auto status = ucp_ep_create(worker_, &parameters, &endpoint_); status != UCS_OK) {
      return fail_ucx(status, "ucp_ep_create");
    }
    return {};
  }

  ucs_status_ptr_t send(const std::uint32_t& tensor, Bytes bytes) {
    const ucp_request_param_t parameters{};
    return ucp_am_send_nbx(endpoint_, kMessage, &tensor, sizeof(tensor), bytes.data(), bytes.size(), &parameters);
  }

  ucs_status_t wait(ucs_status_ptr_t request) {
    if (request == nullptr) return UCS_OK;
    if (UCS_PTR_IS_ERR(request)) return UCS_PTR_STATUS(request);
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress();
    ucp_request_free(request);
    return status;
  }

 private:
  Worker() = default;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

class Ucx final : public Subject {
 public:
  Ucx(std::unique_ptr<Worker> worker, std::unique_ptr<Child> reader)
      : worker_(std::move(worker)), reader_(std::move(reader)) {}

  std::string name() const override { return "ucx_am"; }

  /// The reader is told before the clock starts what to wait for, so that it need not be woken.
  Result<double> update(const Model& model, Mode, std::span<const std::uint32_t> changed) override {
    FRESHET_TRY(reader_->write_line(join(changed)));
    const std::int64_t start_ns = monotonic_ns();
    std::vector<ucs_status_ptr_t> requests;
    for (const std::uint32_t& tensor : changed) requests.push_back(worker_->send(tensor, model.tensor(tensor)));
    for (const ucs_status_ptr_t request : requests) {
      if (const auto status = worker_->wait(request); status != UCS_OK) return fail_ucx(status, "ucp_am_send_nbx");
    }
    FRESHET_ASSIGN(const std::string line, reader_->read_line());
    return milliseconds_of(line, start_ns, model, changed);
  }

 private:
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Child> reader_;
};

/// The receiving end: a buffer for each tensor, touched before.
struct Inbox {
  ucp_worker_h worker = nullptr;
  std::vector<std::vector<std::byte>> tensors;
  std::size_t arrived = 0;
  bool broken = false;

  static void on_data(void* request, ucs_status_t status, std::size_t, void* self) {
    static_cast<Inbox*>(self)->count(status);
    ucp_request_free(request);
  }
  void count(ucs_status_t status) {
    ++arrived;
    broken |= status != UCS_OK;
  }

  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* parameters) {
    auto& inbox = *static_cast<Inbox*>(self);
    std::uint32_t tensor = 0;
    if (header_bytes == sizeof(tensor)) std::memcpy(&tensor, header, sizeof(tensor));
    if (tensor >= inbox.tensors.size() || inbox.tensors[tensor].size() != bytes) {
      inbox.count(UCS_ERR_INVALID_PARAM);
      return UCS_OK;
    }
    std::byte* const to = inbox.tensors[tensor].data();
    if ((parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(to, data, bytes);
      inbox.count(UCS_OK);
      return UCS_OK;
    }
    ucp_request_param_t receive{};
    receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    receive.cb.recv_am = on_data;
    receive.user_data = self;
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(inbox.worker, data, to, bytes, &receive);
    if (!UCS_PTR_IS_PTR(request)) inbox.count(UCS_PTR_STATUS(request));
    return UCS_OK;
  }
};

}  // namespace

Result<std::unique_ptr<Subject>> make_ucx(const Model& model) {
  FRESHET_ASSIGN(auto worker, Worker::open());
  FRESHET_ASSIGN(auto reader, Child::start({own_path(), "--role=ucx-reader", model.sizes()}));
  FRESHET_ASSIGN(const std::string address, reader->read_line());
  FRESHET_TRY(worker->connect(address));
  return std::make_unique<Ucx>(std::move(worker), std::move(reader));
}

int run_ucx_reader(const std::vector<std::string>& arguments) {
  auto worker = Worker::open();
  if (!worker) {
    std::cerr << worker.error().message() << "\n";
    return 1;
  }
  Inbox inbox{.worker = (*worker)->get()};
  for (const std::uint64_t size : parse_sizes(arguments.at(0))) inbox.tensors.emplace_back(size, std::byte{1});
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessage;
  handler.cb = Inbox::on_message;
  handler.arg = &inbox;
  if (ucp_worker_set_am_recv_handler((*worker)->get(), &handler) != UCS_OK) return 1;
  std::cout << (*worker)->address() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::uint32_t> expected = parse_numbers(line);
    while (inbox.arrived < expected.size()) (*worker)->progress();
    if (inbox.broken) return 1;
    inbox.arrived = 0;
    std::uint64_t stamp = 0;
    if (!expected.empty()) std::memcpy(&stamp, inbox.tensors.at(expected.back()).data(), sizeof(stamp));
    std::cout << monotonic_ns() << " " << stamp << std::endl;
  }
  return 0;
}

}  // namespace freshet::benchmarks

#else

namespace freshet::benchmarks {

Result<std::unique_ptr<Subject>> make_ucx(const Model&) { return fail(Code::unsupported, "built without UCX"); }
int run_ucx_reader(const std::vector<std::string>&) { return 1; }

}  // namespace freshet::benchmarks

#endif
