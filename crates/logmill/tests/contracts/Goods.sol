// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

/// Semi-fungible tokens (ERC-1155). Who may do what is left out: everybody may mint, and burn and move what others
/// have.
contract Goods {
    /// By account, then by id.
    mapping(address => mapping(uint256 => uint256)) public balanceOf;

    event TransferSingle(
        address indexed operator, address indexed from, address indexed to, uint256 id, uint256 value
    );
    event TransferBatch(
        address indexed operator, address indexed from, address indexed to, uint256[] ids, uint256[] values
    );

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == 0x01ffc9a7 || id == 0xd9b67a26 || id == 0x0e89341c;
    }

    /// One text for all; who reads it puts the id in.
    function uri(uint256) external pure returns (string memory) {
        return 'data:application/json,{"name":"Good {id}"}';
    }

    function mint(address to, uint256 id, uint256 value) external {
        single(address(0), to, id, value);
    }

    function burn(address from, uint256 id, uint256 value) external {
        single(from, address(0), id, value);
    }

    function safeTransferFrom(address from, address to, uint256 id, uint256 value, bytes calldata) external {
        single(from, to, id, value);
    }

    function mintBatch(address to, uint256[] memory ids, uint256[] memory values) external {
        batch(address(0), to, ids, values);
    }

    function burnBatch(address from, uint256[] memory ids, uint256[] memory values) external {
        batch(from, address(0), ids, values);
    }

    function safeBatchTransferFrom(
        address from,
        address to,
        uint256[] memory ids,
        uint256[] memory values,
        bytes calldata
    ) external {
        batch(from, to, ids, values);
    }

    /// `count` mints, burns and transfers of `kinds` goods among `holders` accounts, both numbered from 1, as `seed`
    /// draws them; some alone, some in batches of up to seven, in which the same good may be twice.
    function scatter(uint256 count, uint256 kinds, uint256 holders, uint256 seed) external {
        for (uint256 i = 0; i < count; i++) {
            uint256 r = uint256(keccak256(abi.encode(seed, i)));
            address from = address(uint160(1 + (r >> 8) % holders));
            address to = address(uint160(1 + (r >> 40) % holders));
            if (r % 2 == 0) {
                uint256 id = 1 + (r >> 72) % kinds;
                uint256 held = balanceOf[from][id];
                if (held == 0) single(address(0), to, id, (r >> 104) % 1000);
                else single(from, r % 16 == 2 ? address(0) : to, id, (r >> 104) % (held + 1));
                continue;
            }
            uint256[] memory ids = new uint256[]((r >> 72) % 8);
            uint256[] memory values = new uint256[](ids.length);
            for (uint256 j = 0; j < ids.length; j++) {
                ids[j] = 1 + uint256(keccak256(abi.encode(r, j))) % kinds;
                values[j] = (r >> (104 + j)) % 100;
            }
            batch(address(0), to, ids, values);
            // They are there now, so a batch can move them on.
            if (r % 16 == 1) batch(to, address(0), ids, values);
            else if (r % 4 == 1) batch(to, from, ids, values);
        }
    }

    function single(address from, address to, uint256 id, uint256 value) private {
        move(from, to, id, value);
        emit TransferSingle(msg.sender, from, to, id, value);
    }

    function batch(address from, address to, uint256[] memory ids, uint256[] memory values) private {
        require(ids.length == values.length, "as many values as ids");
        for (uint256 i = 0; i < ids.length; i++) move(from, to, ids[i], values[i]);
        emit TransferBatch(msg.sender, from, to, ids, values);
    }

    function move(address from, address to, uint256 id, uint256 value) private {
        if (from != address(0)) balanceOf[from][id] -= value;
        if (to != address(0)) balanceOf[to][id] += value;
    }
}
