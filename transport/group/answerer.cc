// SPDX-License-Identifier: Apache-2.0
#include "transport/group/answerer.h"

#include <utility>

#include "core/base/format.h"

namespace freshet::group {
namespace {

constexpr std::uint64_t kQuestionBytesMax = kMessageBytesMax;
/// Limits for answers that their askers have not read yet.
constexpr SendBudget::Limits kAnswersWaiting{.peer_bytes = 16 * kAnswerBytesMax, .all_bytes = 256 * kAnswerBytesMax};
/// While so many bytes of answers wait, no more answers are made: what honest ranks ask for is never dropped.
constexpr std::uint64_t kAnswersAhead = kAnswersWaiting.all_bytes / 2;
constexpr std::chrono::milliseconds kAnswersPause{5};

}  // namespace

Answerer::Answerer(Rank rank, decltype(GroupHandlers::on_ask) on_ask, const Wake& wake)
    : rank_(rank), on_ask_(std::move(on_ask)), wake_(wake), sends_(kAnswersWaiting) {}

Answerer::~Answerer() {
  stop();
  join();
}

void Answerer::start() {
  thread_ = std::thread([this] { run(); });
}

void Answerer::stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  question_came_.notify_all();
}

void Answerer::join() {
  if (thread_.joinable()) thread_.join();
}

void Answerer::put(std::string identity, Message question) {
  const MutexLock lock(mutex_);
  if (to_answer_.size() >= kQuestionsMax || to_answer_bytes_ + question.data.size() > kQuestionBytesMax) {
    Error full(Code::unavailable, format("rank {} has {} questions to answer already", rank_, to_answer_.size()));
    answered_.push_back({std::move(identity), question.number, fail(std::move(full))});
    return;
  }
  to_answer_bytes_ += question.data.size();
  to_answer_.push_back({std::move(identity), std::move(question)});
  question_came_.notify_one();
}

void Answerer::send_answers(ZmqSocket& socket, Rejects& rejects) {
  std::vector<Answered> all;
  {
    const MutexLock lock(mutex_);
    all.swap(answered_);
  }
  for (Answered& one : all) {
    Message message{.kind = Kind::answer, .from = rank_, .number = one.number};
    if (!one.answer) put_error(message, one.answer.error());
    const auto head = std::make_shared<const std::vector<std::byte>>(encode(message));
    const bool has_data = one.answer && !one.answer->empty();
    const auto body = has_data ? std::make_shared<const std::vector<std::byte>>(*std::move(one.answer)) : head;
    const SendBudget::Sent sent =
        sends_.send(socket.socket, one.identity, body, *body, has_data ? Bytes(*head) : Bytes());
    // Its asker's wait ends.
    if (sent == SendBudget::Sent::no_room || sent == SendBudget::Sent::crowded) {
      rejects.count("an answer is dropped: those who asked do not read theirs", system_clock().now());
    }
  }
}

void Answerer::run() {
  for (;;) {
    ToAnswer question;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && to_answer_.empty()) question_came_.wait(mutex_);
      // ZeroMQ does not tell when it has sent some of them.
      while (!stopping_ && sends_.waiting() >= kAnswersAhead)
        question_came_.wait_until(mutex_, system_clock().now() + kAnswersPause);
      if (stopping_) return;
      question = std::move(to_answer_.front());
      to_answer_.pop_front();
      to_answer_bytes_ -= question.message.data.size();
    }
    Result<std::vector<std::byte>> answer =
        on_ask_ ? on_ask_(question.message.from, question.message.data)
                : Result<std::vector<std::byte>>(fail(Code::unsupported, "this rank answers no questions"));
    {
      const MutexLock lock(mutex_);
      answered_.push_back({std::move(question.identity), question.message.number, std::move(answer)});
    }
    wake_.wake();
  }
}

}  // namespace freshet::group
