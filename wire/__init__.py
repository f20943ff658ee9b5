"""The protocol between edge and cloud: messages, their packed encoding, generated stubs and transports."""
