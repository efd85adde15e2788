"""What users do with the openai, anthropic and ollama packages, against the server whose address is the argument. Its model's template writes tools as Qwen's does."""

import json
import sys

import anthropic
import ollama
import openai

ADDRESS = sys.argv[1]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
SETTINGS = {"seed": 7, "temperature": 0.7, "max_tokens": 16}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}

openai_client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="none", max_retries=0)
ollama_client = ollama.Client(host=ADDRESS)
anthropic_client = anthropic.Anthropic(base_url=ADDRESS, api_key="none", max_retries=0)
TOOL = {
    "name": "paint",
    "description": "Paints a wall.",
    "parameters": {**SCHEMA, "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]},
}


def openai_chat():
    answer = openai_client.chat.completions.create(model="tested", messages=MESSAGES, **SETTINGS)
    assert answer.choices[0].finish_reason in ("stop", "length") and answer.usage.completion_tokens <= 16
    again = openai_client.chat.completions.create(model="tested", messages=MESSAGES, **SETTINGS)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    return answer.choices[0].message.content


def openai_stream():
    options = {"include_usage": True}
    stream = openai_client.chat.completions.create(
        model="tested", messages=MESSAGES, stream=True, stream_options=options, **SETTINGS
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens <= 16
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == openai_chat()


def openai_stream_that_is_closed():
    stream = openai_client.chat.completions.create(model="tested", messages=MESSAGES, stream=True)
    next(iter(stream))
    stream.close()


def openai_structured():
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    answer = openai_client.chat.completions.create(
        model="tested", messages=MESSAGES, response_format=form, max_tokens=100, seed=1
    )
    found = json.loads(answer.choices[0].message.content)
    assert found["colour"] in ("red", "blue") and isinstance(found["sure"], bool)


def openai_log_probs_and_choices():
    answer = openai_client.chat.completions.create(
        model="tested", messages=MESSAGES, logprobs=True, top_logprobs=3, n=3, **SETTINGS
    )
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)


def openai_completion():
    answer = openai_client.completions.create(model="tested", prompt=["It was", "There is"], logprobs=2, **SETTINGS)
    assert len(answer.choices) == 2
    stream = openai_client.completions.create(model="tested", prompt="It was", stream=True, **SETTINGS)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def openai_tools():
    tools = [{"type": "function", "function": TOOL}]
    answer = openai_client.chat.completions.create(
        model="tested", messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    [call] = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "paint"
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue")
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    rounds = [*MESSAGES, answer.choices[0].message, result]
    answer = openai_client.chat.completions.create(model="tested", messages=rounds, tools=tools, **SETTINGS)
    assert answer.choices[0].message.role == "assistant"


def openai_responses():
    answer = openai_client.responses.create(
        model="tested", instructions="Be brief.", input="Name a colour.", max_output_tokens=16
    )
    assert answer.status in ("completed", "incomplete") and answer.usage.output_tokens <= 16
    events = list(
        openai_client.responses.create(model="tested", input="Name a colour.", max_output_tokens=16, stream=True)
    )
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text


def anthropic_messages():
    asked = {"model": "tested", "max_tokens": 16, "system": "Be brief.", "messages": MESSAGES[1:]}
    asked["extra_body"] = {"seed": 7, "temperature": 0.7}
    answer = anthropic_client.messages.create(**asked)
    assert answer.content[0].text == openai_chat() and answer.usage.output_tokens <= 16
    with anthropic_client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
        assert stream.get_final_message().stop_reason == answer.stop_reason
    counted = anthropic_client.messages.count_tokens(model="tested", system="Be brief.", messages=MESSAGES[1:])
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def anthropic_tools():
    tools = [{"name": "paint", "description": "Paints a wall.", "input_schema": TOOL["parameters"]}]
    answer = anthropic_client.messages.create(
        model="tested", max_tokens=200, messages=MESSAGES[1:], tools=tools, tool_choice={"type": "tool", "name": "paint"}
    )
    assert answer.stop_reason == "tool_use" and answer.content[-1].input["colour"] in ("red", "blue")
    with anthropic_client.messages.stream(
        model="tested", max_tokens=200, messages=MESSAGES[1:], tools=tools, tool_choice={"type": "any"}
    ) as stream:
        assert stream.get_final_message().content[-1].type == "tool_use"


def anthropic_errors():
    try:
        anthropic_client.messages.create(model="absent", max_tokens=5, messages=MESSAGES[1:])
    except anthropic.NotFoundError as found:
        assert "absent" in str(found)
    else:
        raise AssertionError("an absent model is not rejected")


def openai_errors():
    for wrong, error in [
        ({"temperature": -1}, openai.BadRequestError),
        ({"model": "absent"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"max_tokens": -7}, openai.BadRequestError),
    ]:
        try:
            openai_client.chat.completions.create(**({"model": "tested", "messages": MESSAGES} | wrong))
        except error as found:
            assert next(iter(wrong)) in str(found), found
            assert found.param == next(iter(wrong)), found.body
        else:
            raise AssertionError(f"{wrong} is not rejected")


def openai_models():
    assert [model.id for model in openai_client.models.list()] == ["tested"]
    assert openai_client.models.retrieve("tested").id == "tested"


def ollama_chat():
    options = {"seed": 7, "temperature": 0.7, "num_predict": 16}
    answer = ollama_client.chat(model="tested", messages=MESSAGES, options=options)
    assert answer.done and answer.message.content == openai_chat()
    parts = ollama_client.chat(model="tested", messages=MESSAGES, options=options, stream=True)
    assert "".join(part.message.content for part in parts) == answer.message.content
    shaped = ollama_client.chat(model="tested", messages=MESSAGES, format=SCHEMA, options={"num_predict": 100})
    assert json.loads(shaped.message.content)["colour"] in ("red", "blue")


def ollama_generate():
    options = {"seed": 7, "num_predict": 16}
    answer = ollama_client.generate(model="tested", prompt="It was", raw=True, options=options)
    assert answer.done and answer.eval_count <= 16
    parts = ollama_client.generate(model="tested", prompt="It was", raw=True, options=options, stream=True)
    assert "".join(part.response for part in parts) == answer.response


def ollama_models():
    assert ollama_client.list().models[0].model == "tested"
    assert ollama_client.ps().models[0].context_length > 0
    assert "completion" in ollama_client.show("tested").capabilities
    try:
        ollama_client.chat(model="absent", messages=MESSAGES)
    except ollama.ResponseError as found:
        assert found.status_code == 404 and "absent" in found.error
    else:
        raise AssertionError("an absent model is not rejected")


for name, check in list(globals().items()):
    if name.startswith(("anthropic_", "openai_", "ollama_")) and not name.endswith("_client"):
        check()
        print(f"{name}: ok")
