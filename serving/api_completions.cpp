// Completions and chats: from a request to the job, and from what the job says to an answer.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "serving/api.h"

namespace expertflow {
namespace {

constexpr uint32_t kCompletionTokens = 16;  // OpenAI's default

}  // namespace

// --- requests ----------------------------------------------------------------------------------

void Api::Complete(const HttpRequest& request) {
  const HttpConnectionId connection = request.connection;
  CompletionRequest parsed;
  const bool chat = request.path == "/v1/chat/completions";
  if (const auto error = chat
                             ? ParseChatRequest(request.body, options_.chat.variables_json, &parsed)
                             : ParseCompletionRequest(request.body, &parsed)) {
    Fail(connection, *error);
    return;
  }
  ApiError error;
  std::vector<std::vector<int32_t>> prompts;
  if (parsed.has_tools && options_.chat_status.ok() && !options_.chat.chat->Names("tools")) {
    error = BadParameter("tools", "tools: the model's chat template has no use for them");
    error.code = "unsupported_parameter";
    Fail(connection, error);
    return;
  }
  const bool good =
      CheckModel(parsed.model, &error) && CheckBiases(parsed.sampling, &error) &&
      (!chat ||
       Render(parsed.chat_json, &std::get<std::string>(parsed.prompts.emplace_back()), &error)) &&
      Tokenize(parsed, &prompts, &error);
  if (!good) {
    Fail(connection, error);
    return;
  }
  if (const std::string why = NotReady(); !why.empty()) {
    Fail(connection, ApiErrorFrom(Unavailable(why)));
    return;
  }
  Start(request, parsed, prompts);
}

bool Api::Tokenize(const CompletionRequest& parsed, std::vector<std::vector<int32_t>>* prompts,
                   ApiError* error) const {
  const bool chat = !parsed.chat_json.empty();
  const char* param = chat ? "messages" : "prompt";
  for (const CompletionRequest::Prompt& prompt : parsed.prompts) {
    std::vector<int32_t>& ids = prompts->emplace_back();
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      // A chat's template writes the tokens around the text itself.
      if (!Encode(param, *text, /*add_special_tokens=*/!chat, &ids, error)) return false;
    } else {
      ids = std::get<std::vector<int32_t>>(prompt);
    }
    if (!CheckTokens(param, ids, error)) return false;
    const auto tokens = static_cast<int64_t>(ids.size());
    const int64_t new_tokens = parsed.max_tokens.value_or(1);
    // The last token is never fed back, so it needs no position.
    if (tokens + new_tokens - 1 > options_.positions_max) {
      *error = BadParameter(
          tokens > options_.positions_max ? param : "max_tokens",
          fmt::format("{} prompt tokens and {} new ones do not fit: a sequence has room for {}",
                      tokens, new_tokens, options_.positions_max));
      error->code = "context_length_exceeded";
      return false;
    }
  }
  return true;
}

std::string Api::EchoOf(const CompletionRequest::Prompt& prompt) const {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return tokenizer_.Decode(std::get<std::vector<int32_t>>(prompt), /*skip_special=*/false);
}

void Api::Start(const HttpRequest& request, const CompletionRequest& parsed,
                const std::vector<std::vector<int32_t>>& prompts) {
  const HttpConnectionId connection = request.connection;
  Generation& generation = generations_[connection];
  generation.head = {
      .chat = !parsed.chat_json.empty(),
      .id = fmt::format("{}-{}{:08x}", parsed.chat_json.empty() ? "cmpl" : "chatcmpl", id_prefix_,
                        last_request_ + 1),
      .created = std::time(nullptr),
      .model = options_.model};
  generation.stream = parsed.stream;
  generation.include_usage = parsed.include_usage;
  generation.prompt_only = parsed.max_tokens == 0U;
  generation.choices_per_prompt = parsed.n;
  generation.started_ns = now_ns_;
  const uint64_t seed = parsed.has_seed ? parsed.sampling.seed : random_();
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto room =
        static_cast<uint32_t>(options_.positions_max - static_cast<int64_t>(prompts[p].size()) + 1);
    for (int32_t i = 0; i < parsed.n; ++i) {
      SubmitRequest submit;
      submit.request = ++last_request_;
      submit.is_text = false;
      submit.tokens = prompts[p];
      const uint32_t wanted =
          parsed.max_tokens.value_or(generation.head.chat ? room : kCompletionTokens);
      submit.max_new_tokens = std::clamp<uint32_t>(wanted, 1, room);
      submit.priority = parsed.priority;
      submit.sampling = parsed.sampling;
      // The choices of one prompt differ.
      submit.sampling.seed = seed + static_cast<uint64_t>(i);
      submit.stop = parsed.stop;
      submit.ignore_eos = parsed.ignore_eos;
      submit.grammar = parsed.grammar;
      submit.trace_id = request.trace.trace_id;
      submit.logprobs = parsed.logprobs;
      submit.prompt_logprobs = parsed.logprobs >= 0 && parsed.echo;
      requests_[submit.request] = {connection, generation.choices.size()};
      Choice choice;
      choice.request = submit.request;
      choice.prompt_tokens = static_cast<uint32_t>(prompts[p].size());
      if (parsed.has_tools) choice.tools = std::make_unique<ToolCallReader>();
      if (parsed.logprobs >= 0) {
        choice.logprobs = std::make_unique<TokenLogprobs>(
            tokenizer_, generation.head.chat,
            parsed.echo ? std::span<const int32_t>(prompts[p]) : std::span<const int32_t>());
      }
      if (parsed.echo) choice.answer.text = EchoOf(parsed.prompts[p]);
      generation.choices.push_back(std::move(choice));
      job_.ToJob(submit);
    }
  }
  generation.open = generation.choices.size();
}

// --- answers -----------------------------------------------------------------------------------

AnswerChoice Api::PieceOf(Choice* choice, std::string_view text, bool last) {
  AnswerChoice piece;
  if (choice->tools == nullptr) {
    piece.text = text;
    return piece;
  }
  ToolCallReader::Piece read = last ? choice->tools->Flush() : choice->tools->Push(text);
  piece.text = std::move(read.text);
  piece.tools_begin = choice->answer.tools.size();
  for (ToolCallText& call : read.calls) {
    piece.tools.push_back({fmt::format("call_{}{:08x}", id_prefix_, ++last_call_),
                           std::move(call.name), std::move(call.arguments)});
    choice->answer.tools.push_back(piece.tools.back());
  }
  return piece;
}

void Api::StartStream(HttpConnectionId connection, Generation* generation) {
  if (generation->stream_started) return;
  generation->stream_started = true;
  generation->sent_ns = now_ns_;
  replies_->StartStream(connection, "text/event-stream");
  for (size_t i = 0; i < generation->choices.size(); ++i) {
    const std::string echo = std::exchange(generation->choices[i].answer.text, "");
    if (generation->head.chat || !echo.empty()) {
      SendPiece(connection, generation, i, {.text = echo});
    }
  }
}

void Api::SendPiece(HttpConnectionId connection, Generation* generation, size_t index,
                    AnswerChoice piece) {
  Choice& choice = generation->choices[index];
  const bool first = !std::exchange(choice.streamed, true);
  if (choice.logprobs != nullptr) {
    piece.logprobs_json = piece.finish == FinishReason::kNone
                              ? choice.logprobs->Take(choice.text_bytes)
                              : choice.logprobs->TakeLast(choice.text_bytes, piece.finish);
  }
  replies_->Send(connection, ChunkEvent(generation->head, index, piece, first));
  generation->sent_ns = now_ns_;
}

void Api::OnCapture(const RequestCapture& capture) {
  const auto place = requests_.find(capture.request);
  if (place == requests_.end()) return;
  const Generation& generation = generations_.at(place->second.connection);
  const Choice& choice = generation.choices[place->second.choice];
  if (choice.logprobs == nullptr) return;
  const bool of_prompt = capture.captured.position + 1 < choice.prompt_tokens;
  if (of_prompt || !generation.prompt_only) choice.logprobs->Add(capture.captured.logprobs);
}

void Api::OnDelta(const TextDelta& delta) {
  const auto place = requests_.find(delta.request);
  if (place == requests_.end() || delta.text.empty()) return;
  const HttpConnectionId connection = place->second.connection;
  Generation& generation = generations_.at(connection);
  if (generation.prompt_only) return;
  Choice& choice = generation.choices[place->second.choice];
  choice.text_bytes += static_cast<int64_t>(delta.text.size());
  AnswerChoice piece = PieceOf(&choice, delta.text, /*last=*/false);
  if (!generation.stream) {
    choice.answer.text += piece.text;
  } else if (!piece.text.empty() || !piece.tools.empty()) {
    StartStream(connection, &generation);
    SendPiece(connection, &generation, place->second.choice, std::move(piece));
  }
}

void Api::OnDone(const RequestDone& done) {
  const auto found = requests_.find(done.request);
  if (found == requests_.end()) return;
  const Place place = found->second;
  requests_.erase(found);
  Generation& generation = generations_.at(place.connection);
  Choice& choice = generation.choices[place.choice];
  choice.done = true;
  choice.answer.finish = generation.prompt_only ? FinishReason::kLength : done.finish;
  --generation.open;
  if (done.finish != FinishReason::kStop && done.finish != FinishReason::kLength) {
    const auto code = done.code > 0 && done.code <= static_cast<uint8_t>(StatusCode::kInternal)
                          ? static_cast<StatusCode>(done.code)
                          : StatusCode::kInternal;
    FailGeneration(place.connection, ApiErrorFrom(Status(code, done.message)));
    return;
  }
  if (place.choice % static_cast<size_t>(generation.choices_per_prompt) == 0) {
    generation.usage.prompt_tokens += done.prompt_tokens;
    generation.usage.cached_tokens += done.cached_tokens;
  }
  if (!generation.prompt_only) generation.usage.completion_tokens += done.generated_tokens;
  AnswerChoice last = PieceOf(&choice, "", /*last=*/true);
  last.finish = choice.answer.finish;
  if (generation.stream) {
    StartStream(place.connection, &generation);
    SendPiece(place.connection, &generation, place.choice, std::move(last));
  } else {
    choice.answer.text += last.text;
    if (choice.logprobs != nullptr) {
      choice.answer.logprobs_json = choice.logprobs->TakeLast(choice.text_bytes, last.finish);
    }
  }
  if (generation.open == 0) Finish(place.connection);
}

void Api::Finish(HttpConnectionId connection) {
  // Out of the map first: the connection may start its next request.
  const Generation generation = std::move(generations_.extract(connection).mapped());
  if (access_log_ != nullptr) {
    access_log_->AddTokens(connection, generation.usage.prompt_tokens,
                           generation.usage.completion_tokens);
  }
  if (generation.stream) {
    if (generation.include_usage) {
      replies_->Send(connection, UsageEvent(generation.head, generation.usage));
    }
    replies_->Send(connection, EventOf("[DONE]"));
    replies_->EndStream(connection);
    return;
  }
  std::vector<AnswerChoice> answers;
  for (const Choice& choice : generation.choices) answers.push_back(choice.answer);
  replies_->Respond(connection, {.body = AnswerJson(generation.head, answers, generation.usage)});
}

void Api::FailGeneration(HttpConnectionId connection, const ApiError& error) {
  const bool streaming = generations_.at(connection).stream_started;
  Drop(connection);
  if (!streaming) {
    Fail(connection, error);
    return;
  }
  if (access_log_ != nullptr) access_log_->Failed(connection, "failed");
  replies_->Send(connection, EventOf(ErrorJson(error)));
  replies_->EndStream(connection);
}

void Api::Drop(HttpConnectionId connection) {
  const auto found = generations_.find(connection);
  if (found == generations_.end()) return;
  for (const Choice& choice : found->second.choices) {
    if (choice.done) continue;
    requests_.erase(choice.request);
    job_.ToJob(CancelRequest{choice.request});
  }
  generations_.erase(found);
}

void Api::OnGone(HttpConnectionId connection) {
  if (access_log_ != nullptr) access_log_->Gone(connection);
  Drop(connection);
}

void Api::FailAll(const Status& status) {
  while (!generations_.empty()) {
    FailGeneration(generations_.begin()->first, ApiErrorFrom(status));
  }
}

}  // namespace expertflow
